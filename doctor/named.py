"""Interfaces that NCCL and gloo are told to take by name."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress

from doctor import nccl, peers
from doctor.finding import Finding, fail, warn
from host import fleet, limits
from host.machine import Machine

_NET = "/sys/class/net"
CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The variables that name interfaces."""
_OF_CLUSTERS = 4  # ports that a node of a cluster has
_INNER = re.compile(r"lo$|docker\d|virbr\d")


def astray(machine: Machine, names: list[str]) -> Finding | None:
    """A library is told to take an interface, or a port, that there is not, or that has no
    address.
    """
    for variable in CHOICES:
        asked = nccl.told(machine, variable)
        if asked and not chosen(variable, asked, names):
            no = "names no interface"
            if asked.startswith("^"):
                no = (
                    "leaves none" if variable.startswith("NCCL") else "is what NCCL reads, not gloo"
                )
            return fail(
                "network",
                f"{variable}={asked} {no}; there are {', '.join(names)}",
                "the processes do not find each other",
                f"{nccl.undo(machine, variable)}; or name one of them",
            )
        outward = _outward(machine, chosen(variable, asked, names)) if asked else None
        if outward is not None:
            return fail(
                "network",
                f"{variable}={asked}, and the first machine is in the network of {outward}",
                "it leads out of this container, and not to the other machines: they time out",
                f"export {variable}={outward}, on all machines",
            )
        inner = chosen(variable, asked, names) if asked else []
        if (
            inner
            and fleet.several(machine.environ)
            and all(_is_inner(machine, name) for name in inner)
        ):
            return fail(
                "network",
                f"{variable}={asked}: that interface reaches this machine alone",
                "the other machines are told its address: Connection refused, or they hang",
                f"{nccl.undo(machine, variable)}; or name the one in the machines' network",
            )
        bare = _without_address(machine, asked, names) if asked else None
        if bare is not None:
            return fail(
                "network",
                f"{variable}={asked}, and {bare}",
                "the processes do not find each other: no socket interface found",
                f"{nccl.undo(machine, variable)}; or name the one that has the address (a bond or"
                " bridge, and not its ports)",
            )
    ports = machine.names(nccl.FABRIC)
    asked = nccl.told(machine, "NCCL_IB_HCA")
    efa = all("rdmap" in port or "efa" in port for port in ports)
    several = fleet.several(machine.environ)
    meant = asked.startswith("^") or efa or not (several or len(ports) >= _OF_CLUSTERS)
    if asked and ports and not meant and not nccl.adapters(machine, ports):
        return (fail if several else warn)(
            "network",
            f"NCCL_IB_HCA={asked} names no port; there are {', '.join(ports)}",
            "NCCL goes by Ethernet, or does not start",
            f"{nccl.undo(machine, 'NCCL_IB_HCA')}; or name some of them",
        )
    return None


def _without_address(machine: Machine, asked: str, names: list[str]) -> str | None:
    """Of interfaces that are named in full, that none has an address; None: one has, or it is not
    known.
    """
    said = machine.run("ip", "-o", "addr").out or machine.run(*peers.ASK_ADDRESSES).out
    taken = [name for name in asked.lstrip("=").split(",") if name in names]
    having = {m.group(1) for m in re.finditer(r"(?m)^\d+: (\S+?)(?:@\S+)? +inet6? ", said)}
    if not said or asked.startswith("^") or not taken or set(taken) & having:
        return None
    # One that begins so may be meant: eth is for eth0.
    if any(name.startswith(tuple(taken)) for name in having):
        return None
    return f"{taken[0]} has no address; {', '.join(sorted(having - {'lo'})) or 'no other'} has one"


def _is_inner(machine: Machine, name: str) -> bool:
    """Whether an interface reaches this machine alone: not a bridge with a network card in it."""
    ports = machine.names(f"{_NET}/{name}/brif")
    carded = any(machine.exists(f"{_NET}/{port}/device") for port in ports)
    return _INNER.match(name) is not None and not carded


def chosen(variable: str, asked: str, names: list[str]) -> list[str]:
    """Which interfaces a variable means; NCCL takes beginnings, `=` whole names, `^` all others."""
    if asked.startswith("^") and variable.startswith("GLOO"):
        return []  # Unable to find address for: ^lo
    words = asked.lstrip("^=").split(",")
    exact = asked.lstrip("^").startswith("=") or variable.startswith("GLOO")
    if exact:
        found = [name for name in names if name in words]
    else:
        found = [name for name in names if any(word and name.startswith(word) for word in words)]
    return [name for name in names if name not in found] if asked.startswith("^") else found


def is_named(machine: Machine, name: str, names: list[str]) -> bool:
    """Whether a library is told to take this interface."""
    told = {each: nccl.told(machine, each) for each in CHOICES}
    return any(value and name in chosen(each, value, names) for each, value in told.items())


def _outward(machine: Machine, taken: list[str]) -> str | None:
    """The interface in whose network the machines meet, where a container is told to take its way
    out alone: as in a cluster of RunPod's.

    Elsewhere they may well meet by one and go by another, as one of InfiniBand.
    """
    pod = "KUBERNETES_SERVICE_HOST" in machine.environ
    if pod or not limits.in_container(machine.root) or not fleet.several(machine.environ):
        return None
    networks = {}
    for row in machine.run(*peers.ASK_ADDRESSES).out.splitlines():
        found = re.match(r"\d+: (\S+?)(?:@\S+)? +inet ([\d.]+/\d+)", row)
        with suppress(ValueError):
            if found:
                networks[found.group(1)] = ipaddress.ip_interface(found.group(2))
    with suppress(ValueError):
        first = ipaddress.ip_address(machine.environ.get("MASTER_ADDR", ""))
        meet = next((name for name, each in networks.items() if first in each.network), None)
        ways = [str(networks[name].ip) for name in taken if name in networks]
        if meet and meet not in taken and ways and all(map(peers.BRIDGE.match, ways)):
            return meet
    return None
