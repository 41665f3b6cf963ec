"""RoCE: InfiniBand's protocol over Ethernet, whose addresses belong to interfaces."""

from __future__ import annotations

import re

from doctor import nccl
from host import fleet, limits, nvidia
from host.machine import Machine
from host.text import whole

_NET = "/sys/class/net"
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_V2 = "RoCE v2"


def wrong(machine: Machine, up: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """What keeps NCCL from connecting by a port: what is seen, why it matters, what helps.

    Args:
        up: the ports that are up, each with its device and its folder.
    """
    left = nccl.adapters(machine, [device for device, _ in up])
    taken = [each for each in up if each[0] in left]
    for device, path in taken:
        found = _other_address(machine, device, path) or _of_the_host(machine, device, path)
        if found is not None:
            return found
    if not fleet.several(machine.environ):
        return None
    return (
        _unaddressed(machine, taken)
        or _unlike(machine, taken)
        or _half(machine, up, left)
        or _one_of_a_bond(machine, taken)
    )


def _unaddressed(machine: Machine, taken: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Ports of Ethernet whose interfaces have no address: their GIDs are of the link alone.

    https://github.com/NVIDIA/nccl/issues/769
    """
    if any("InfiniBand" in (machine.read(f"{path}/link_layer") or "") for _, path in taken):
        return None  # which NCCL takes
    for device, path in taken:
        ethernet = "Ethernet" in (machine.read(f"{path}/link_layer") or "")
        known = [gid for gid, _ in _addresses(machine, path).values() if gid != _EMPTY]
        interface = _interface(machine, path)
        bridged = interface and machine.exists(f"/sys/class/net/{interface}/master")
        if ethernet and not bridged and known and all(gid.startswith("fe80:") for gid in known):
            return (
                f"; {device} has no address of IPv4, only one of its own link",
                "NCCL connects by that address, which other networks' ports do not reach, or fails",
                "give the interface of each port an address (netplan, nmcli), on all machines",
            )
    return None


def _interface(machine: Machine, path: str) -> str:
    """The interface that a port's addresses belong to; "" where that is not known."""
    return next(iter(_interfaces(machine, path)), "")


def _interfaces(machine: Machine, path: str) -> list[str]:
    folder = f"{path}/gid_attrs/ndevs"
    named = {(machine.read(f"{folder}/{name}") or "").strip() for name in machine.names(folder)}
    return sorted(named - {""})


def _unlike(machine: Machine, taken: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Ports, of one rate, of which one sends larger packets than another.

    https://github.com/NVIDIA/nccl/issues/1524
    """
    names = {name for _, path in taken if (name := _interface(machine, path))}
    rates = {machine.read(f"{path}/rate") for _, path in taken}
    sizes = {name: whole(machine.read(f"{_NET}/{name}/mtu")) or 0 for name in sorted(names)}
    least = min(sizes, key=lambda name: sizes[name], default="")
    if len(rates) > 1 or not least or sizes[least] in (0, max(sizes.values())):
        return None
    return (
        f"; {least} has an MTU of {sizes[least]}, another port {max(sizes.values())}",
        "where two ports that speak to each other differ, NCCL ends (completion with error 12)",
        (
            f"sudo ip link set dev {least} mtu {max(sizes.values())}   # as on all machines; for"
            " good, in netplan or NetworkManager"
        ),
    )


def _half(
    machine: Machine, up: list[tuple[str, str]], left: list[str]
) -> tuple[str, str, str] | None:
    """DGX Spark's one plug is two cards, and NCCL is told of one of them.

    https://github.com/NVIDIA/dgx-spark-playbooks/issues/102
    """
    spark = any("GB10" in gpu.name for gpu in nvidia.ask(machine)[1])
    names = [device for device, _ in up]
    pairs = [(n, n.replace("rocep", "roceP2p")) for n in names if n.startswith("rocep")]
    alone = [(a, b) for a, b in pairs if b in names and (a in left) != (b in left)]
    if not spark or not alone:
        return None
    first, second = alone[0]
    return (
        f"; NCCL_IB_HCA leaves {second if first in left else first} out, half of a plug",
        "half of what the cable carries is not used",
        f"NCCL_IB_HCA={first},{second} NCCL_IB_MERGE_NICS=1   # each with an address",
    )


def _one_of_a_bond(machine: Machine, taken: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Two ports as one, of which a connection uses one.

    https://github.com/NVIDIA/nccl/issues/1015
    """
    bonds = [
        device
        for device, path in taken
        if "802.3ad" in (machine.read(f"/proc/net/bonding/{_interface(machine, path)}") or "")
    ]
    told = nccl.told(machine, "NCCL_IB_QPS_PER_CONNECTION")
    if not bonds or told:
        return None
    return (
        f"; {bonds[0]} is two ports as one",
        "a connection of NCCL uses one of them: half of the rate",
        "NCCL_IB_QPS_PER_CONNECTION=4   # on all machines",
    )


def _addresses(machine: Machine, path: str) -> dict[int, tuple[str, str]]:
    """The port's addresses (GIDs) by number, and of which version of RoCE each is."""
    found = {}
    for name in machine.names(f"{path}/gids"):
        number = whole(name)
        gid = (machine.read(f"{path}/gids/{name}") or "").strip()
        kind = (machine.read(f"{path}/gid_attrs/types/{name}") or "").strip()
        if number is not None and gid:
            found[number] = (gid, kind)
    return found


def _other_address(machine: Machine, device: str, path: str) -> tuple[str, str, str] | None:
    """The address that NCCL is told to take is none that reaches another machine.

    https://github.com/NVIDIA/nccl/issues/769
    """
    asked = whole(nccl.told(machine, "NCCL_IB_GID_INDEX"))
    if "InfiniBand" in (machine.read(f"{path}/link_layer") or ""):
        return None  # where that says nothing
    known = _addresses(machine, path) if asked is not None else {}
    if asked is None or not known:
        return None
    gid, kind = known.get(asked, (_EMPTY, ""))
    what = None
    if gid == _EMPTY:
        what = "no address"
    elif gid.startswith("fe80:"):
        what = "an address of this link alone (fe80::)"
    elif kind and kind != _V2:
        what = "one of RoCE v1"
    if what is None:
        return None
    mapped = re.compile("0000:0000:0000:0000:0000:ffff:")
    better = next((n for n, (g, k) in sorted(known.items()) if mapped.match(g) and k == _V2), None)
    return (
        f"; NCCL_IB_GID_INDEX={asked} is {what} at {device}",
        "machines do not reach each other by it: ibv_modify_qp, Connection timed out",
        f"{nccl.undo(machine, 'NCCL_IB_GID_INDEX')}: NCCL finds it itself"
        " (from 2.21 on)"
        + (f"; or NCCL_IB_GID_INDEX={better}, of RoCE v2 and IPv4" if better is not None else ""),
    )


def _of_the_host(machine: Machine, device: str, path: str) -> tuple[str, str, str] | None:
    """A container with a network of its own, and the host's port.

    https://github.com/NVIDIA/nccl/issues/925
    """
    wanted = fleet.several(machine.environ) or machine.names("/dev/infiniband")
    if not limits.in_container(machine.root) or not wanted:
        return None
    named, here = _interfaces(machine, path), machine.names(_NET)
    if not named or not here or {*named} & {*here}:
        return None
    return (
        f"; {device} belongs to {named[0]}, which is not in this container",
        "its addresses are the host's: ibv_modify_qp, No such device",
        "start the container with --network host (and --device /dev/infiniband)",
    )


def unopened(machine: Machine) -> tuple[str, str, str] | None:
    """A container that shows devices which it may not open; those without a file are left alone.

    https://github.com/NVIDIA/nccl/issues/2428, https://github.com/linux-rdma/rdma-core/pull/357
    """
    chosen = nccl.told(machine, "NCCL_IB_HCA") or nccl.told(machine, "NCCL_IB_DISABLE") == "1"
    if chosen or not limits.in_container(machine.root):
        return None
    said = machine.run("find", "/dev/infiniband", "-name", "uverbs*", "!", "-writable")
    shut = said.out.split() if said.code == 0 else []
    if not shut:
        return None
    return (
        f"; this container may not open {', '.join(shut)}",
        "NCCL tries it as well, and fails: Unable to open device",
        "start it with --device /dev/infiniband, whole; or name those that open: NCCL_IB_HCA=…",
    )
