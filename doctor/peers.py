"""What keeps the machines of one training from reaching each other."""

from __future__ import annotations

import re

from doctor import nccl
from doctor.finding import Finding, fail, warn
from host import limits, nodes
from host.machine import Machine
from host.text import whole

_NET = "/sys/class/net"
_BRIDGE = re.compile(r"^172\.17\.")  # Docker's own, unless it is told another
_LISTENS = "0A"
_FIREWALLS = ("ufw", "firewalld")
_CHOOSE = "name the one that reaches the others: NCCL_SOCKET_IFNAME={0} GLOO_SOCKET_IFNAME={0}"


def apart(machine: Machine) -> Finding | None:
    """What is wrong where several machines train together; None elsewhere."""
    if not nodes.several(machine.environ):
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
    """The address (IPv4) of each interface but the loopback."""
    rows = machine.run("ip", "-o", "-4", "addr").out.splitlines()
    found = (re.match(r"\d+: (\S+?)(?:@\S+)? +inet (\d[\d.]*)/", row) for row in rows)
    return {each.group(1): each.group(2) for each in found if each and each.group(1) != "lo"}


def _on_a_bridge(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """A container on Docker's bridge, which other machines do not see.

    https://github.com/NVIDIA/nccl/issues/929
    """
    inside = limits.in_container(machine.root)
    if not inside or not addresses or not all(map(_BRIDGE.match, addresses.values())):
        return None
    return fail(
        "network",
        f"this container has only {' and '.join(addresses.values())}, of Docker's bridge",
        "other machines do not reach it: processes wait for each other, and NCCL ends",
        "start the container with --network host, or in an overlay network of Swarm's",
    )


def _taken(machine: Machine) -> Finding | None:
    """The port where they meet belongs to somebody else already."""
    environ = machine.environ
    rank = environ.get("NODE_RANK") or environ.get("RANK")
    port = whole(environ.get("MASTER_PORT")) or nodes.PORT
    if rank != "0":
        return None
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
    """NCCL may choose an interface that no other machine reaches.

    https://github.com/NVIDIA/nccl/issues/913, https://github.com/NVIDIA/nccl/issues/529
    """
    if nccl.told(machine, "NCCL_SOCKET_IFNAME"):
        return None
    astray = [
        f"{name} ({address})"
        for name, address in addresses.items()
        if address.startswith("169.254.")  # a management controller's, of this link alone
    ]
    names = [name for name in machine.names(_NET) if name.startswith(("veth", "ip6tnl"))]
    up = [n for n in names if (machine.read(f"{_NET}/{n}/operstate") or "") in ("up", "unknown")]
    astray += [
        name for name in up if name.startswith("ip6tnl") or limits.in_container(machine.root)
    ]
    if not astray:
        return None
    good = next((n for n in addresses if machine.exists(f"{_NET}/{n}/device")), "eth0")
    return warn(
        "network",
        f"NCCL may take {astray[0]}, which other machines do not reach",
        "it takes the first interface that is up: Connection refused, timed out, or it hangs",
        _CHOOSE.format(good),
    )


def _walled(machine: Machine) -> Finding | None:
    """A firewall is on, and NCCL's ports are any."""
    if limits.in_container(machine.root):
        return None
    on = next(
        (n for n in _FIREWALLS if machine.run("systemctl", "is-active", n).out.strip() == "active"),
        None,
    )
    # ufw's service is active where ufw itself is switched off.
    if on is None or (
        on == "ufw" and "ENABLED=yes" not in (machine.read("/etc/ufw/ufw.conf") or "")
    ):
        return None
    open_up = {
        "ufw": "sudo ufw allow from NETWORK/24",
        "firewalld": "sudo firewall-cmd --permanent --zone=trusted --add-source=NETWORK/24 && sudo"
        " firewall-cmd --reload",
    }
    return warn(
        "network",
        f"a firewall is on ({on})",
        "NCCL and gloo connect by ports of any number: No route to host, or they hang, where the"
        " other machines are not let in",
        f"where that has not been done: {open_up[on]}, on each machine",
    )


def _loopback(machine: Machine) -> Finding | None:
    """This machine's name means itself alone, and gloo tells the others that address.

    make train with NODES names an interface, and does not ask for the name.
    """
    if machine.environ.get("GLOO_SOCKET_IFNAME") or machine.environ.get("NODES"):
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
