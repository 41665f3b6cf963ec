"""What keeps the machines of one training from reaching each other."""

from __future__ import annotations

import re
from contextlib import suppress

from doctor import nccl
from doctor.finding import Finding, warn
from host import fleet, limits, nodes
from host.errors import UsageError
from host.machine import Machine
from host.text import whole

_NET = "/sys/class/net"
_BRIDGE = re.compile(r"^172\.17\.")  # Docker's own, unless it is told another
_OF_A_LAUNCHER = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_LISTENS = "0A"
_FIREWALLS = ("ufw", "firewalld")
_CHOOSE = "name the one that reaches the others: NCCL_SOCKET_IFNAME={0} GLOO_SOCKET_IFNAME={0}"


def apart(machine: Machine) -> Finding | None:
    """What is wrong where several machines train together; None elsewhere."""
    if not fleet.several(machine.environ):
        return None
    addresses = _addresses(machine)
    return (
        _on_a_bridge(machine, addresses)
        or _taken(machine)
        or _another_interface(machine, addresses)
        or _walled(machine)
        or _loopback(machine)
    )


def _addresses(machine: Machine) -> dict[str, str]:
    """The first address (IPv4) of each interface but the loopback."""
    rows = machine.run("ip", "-o", "-4", "addr").out.splitlines()
    found = (re.match(r"\d+: (\S+?)(?:@\S+)? +inet (\d[\d.]*)/", row) for row in rows)
    first: dict[str, str] = {}
    for each in found:
        if each and each.group(1) != "lo":
            first.setdefault(each.group(1), each.group(2))
    return first


def _on_a_bridge(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """A container on Docker's bridge, which other machines do not see.

    https://github.com/NVIDIA/nccl/issues/929
    """
    # A cluster may give its pods that network, and route it.
    if not limits.in_container(machine.root) or "KUBERNETES_SERVICE_HOST" in machine.environ:
        return None
    if not addresses or not all(map(_BRIDGE.match, addresses.values())):
        return None
    return warn(
        "network",
        f"this container has only {' and '.join(addresses.values())}, of Docker's bridge",
        "other machines do not reach it: processes wait for each other, and NCCL ends",
        "start the container with --network host, or in an overlay network of Swarm's",
    )


def _taken(machine: Machine) -> Finding | None:
    """The port where they meet belongs to somebody else already."""
    environ, rank, port = machine.environ, None, None
    with suppress(UsageError):
        told = nodes.told(environ)
        rank, port = (told.rank, told.port) if told else (None, None)
    if rank is None and environ.get("RANK") == "0":
        rank, port = 0, whole(environ.get("MASTER_PORT")) or nodes.PORT
    if rank != 0 or port is None or any(name in environ for name in _OF_A_LAUNCHER):
        return None  # the launcher's own listens
    rows = [
        row.split()
        for file in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in (machine.read(file) or "").splitlines()[1:]
    ]
    held = [r for r in rows if len(r) > 3 and r[3] == _LISTENS and r[1].endswith(f":{port:04X}")]
    if not held:
        return None
    return warn(
        "network",
        f"port {port}, where the machines are to meet, is taken here",
        "the first of them ends: Address already in use; another training, or what is left of one",
        f"sudo ss -ltnp 'sport = :{port}' says whose it is; or MASTER_PORT= another, on all",
    )


def _another_interface(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """NCCL would choose an interface that no other machine reaches: the first one, unless there is
    InfiniBand.

    https://github.com/NVIDIA/nccl/issues/913
    """
    if nccl.told(machine, "NCCL_SOCKET_IFNAME") or any(name.startswith("ib") for name in addresses):
        return None
    up = [
        name
        for name in addresses
        if machine.read(f"{_NET}/{name}/operstate") != "down" and not name.startswith("docker")
    ]
    first = up[0] if up else ""
    # Of this link alone, as a management controller's; or of a container's own pair.
    if not addresses.get(first, "").startswith("169.254.") and not first.startswith("veth"):
        return None
    others = [n for n in up if not addresses[n].startswith("169.254.") and "veth" not in n]
    good = next((n for n in others if machine.exists(f"{_NET}/{n}/device")), "")
    return warn(
        "network",
        f"NCCL takes {first} ({addresses[first]}), which other machines do not reach",
        "it is the first interface that is up: Connection refused, timed out, or it hangs",
        _CHOOSE.format(good or (others or ["THAT_ONE"])[0]),
    )


def walled(machine: Machine) -> str:
    """A firewall that is on, and whose rules this user may not read, as a note."""
    on = _firewall(machine) if fleet.several(machine.environ) else None
    unread = on is not None and _lets_in(machine, on) is None
    return f"; a firewall is on ({on}): it has to let the other machines in" if unread else ""


def _firewall(machine: Machine) -> str | None:
    """The firewall whose service runs here."""
    if limits.in_container(machine.root):
        return None
    said = machine.run("systemctl", "is-active", *_FIREWALLS).out.split()
    return next((name for name, state in zip(_FIREWALLS, said) if state == "active"), None)


def _walled(machine: Machine) -> Finding | None:
    """A firewall is on that lets no network in, and NCCL's ports are any."""
    on = _firewall(machine)
    if on is None or _lets_in(machine, on) is not False:
        return None
    open_up = {
        "ufw": "sudo ufw allow from NETWORK/24",
        "firewalld": "sudo firewall-cmd --permanent --zone=trusted --add-source=NETWORK/24 && sudo"
        " firewall-cmd --reload",
    }
    return warn(
        "network",
        f"a firewall is on ({on}), and lets no network in",
        "NCCL and gloo connect by ports of any number: No route to host, or they hang",
        f"{open_up[on]}   # the other machines' network, on each machine",
    )


def _lets_in(machine: Machine, firewall: str) -> bool | None:
    """Whether it is switched off, lets everything in, or some network; None: not known, since only
    root may read that.
    """
    if firewall == "ufw":  # its service runs all the same where it is off
        off = "ENABLED=yes" not in (machine.read("/etc/ufw/ufw.conf") or "")
        usual = machine.read("/etc/default/ufw") or ""
        if off or 'DEFAULT_INPUT_POLICY="ACCEPT"' in usual:
            return True
        rules = machine.read("/etc/ufw/user.rules")
        some = r"(?m)^-A ufw-user-input (?:-s \S+|-i \S+) -j ACCEPT"
        return None if rules is None else re.search(some, rules) is not None
    told = machine.read("/etc/firewalld/firewalld.conf") or ""
    folder = "/etc/firewalld/zones"
    zones = {name: machine.read(f"{folder}/{name}") for name in machine.names(folder)}
    if not told or None in zones.values():
        return None
    trusted = zones.get("trusted.xml") or ""
    texts = [text or "" for text in zones.values()]
    return (
        re.search("(?m)^DefaultZone=trusted", told) is not None
        or "<source" in trusted
        or "<interface" in trusted
        or any('target="ACCEPT"' in text or "<accept" in text for text in texts)
    )


def _loopback(machine: Machine) -> Finding | None:
    """This machine's name means itself alone, and gloo tells the others that address.

    make train names an interface, and does not ask for the name.
    """
    told = ("GLOO_SOCKET_IFNAME", "NODES", "SLURM_JOB_ID")
    if any(machine.environ.get(name) for name in told):
        return None
    name = (machine.read("/proc/sys/kernel/hostname") or "").strip()
    row = machine.run("getent", "hosts", name).out if name else ""
    found = re.match(r"(127\.[\d.]+|::1)\s", row)
    if found is None:
        return None
    return warn(
        "network",
        f"this machine's name, {name}, means {found.group(1)} here (/etc/hosts)",
        "gloo tells the others to connect there: Connection refused",
        "put this machine's own address in its place, on each machine; or GLOO_SOCKET_IFNAME= the"
        " interface that reaches the others",
    )
