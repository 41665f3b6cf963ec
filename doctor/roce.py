"""RoCE: InfiniBand's protocol over Ethernet, whose addresses belong to interfaces."""

from __future__ import annotations

import re

from host import limits
from host.machine import Machine
from host.text import whole

_FABRIC = "/sys/class/infiniband"
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_V2 = "RoCE v2"


def wrong(machine: Machine, device: str, path: str) -> tuple[str, str, str] | None:
    """What keeps NCCL from connecting by a port: what is seen, why it matters, what helps.

    Args:
        path: the port's folder.
    """
    return _other_address(machine, device, path) or _of_the_host(machine, device, path)


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
    asked = whole(machine.environ.get("NCCL_IB_GID_INDEX"))
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
        "unset NCCL_IB_GID_INDEX: NCCL finds it itself"
        + (f"; or NCCL_IB_GID_INDEX={better}, of RoCE v2 and IPv4" if better is not None else ""),
    )


def _of_the_host(machine: Machine, device: str, path: str) -> tuple[str, str, str] | None:
    """A container with a network of its own, and the host's port.

    https://github.com/NVIDIA/nccl/issues/925
    """
    if not limits.in_container(machine.root):
        return None
    folder = f"{path}/gid_attrs/ndevs"
    named = {(machine.read(f"{folder}/{name}") or "").strip() for name in machine.names(folder)}
    named -= {""}
    here = machine.names("/sys/class/net")
    if not named or not here or named & {*here}:
        return None
    return (
        f"; {device} belongs to {min(named)}, which is not in this container",
        "its addresses are the host's: ibv_modify_qp, No such device",
        "start the container with --network host (and --device /dev/infiniband)",
    )


def unopened(machine: Machine) -> tuple[str, str, str] | None:
    """A container that was given fewer devices than its system shows.

    https://github.com/NVIDIA/nccl/issues/2428
    """
    names = machine.names("/dev/infiniband")
    given = [name for name in names if name.startswith("uverbs")]
    there = machine.names(_FABRIC)
    chosen = machine.environ.get("NCCL_IB_HCA") or machine.environ.get("NCCL_IB_DISABLE") == "1"
    if chosen or not limits.in_container(machine.root) or not given or len(given) >= len(there):
        return None
    return (
        f"; this container was given {len(given)} of {len(there)} devices of /dev/infiniband",
        "NCCL tries the others too, and fails: Unable to open device",
        "start it with --device /dev/infiniband, whole; or name those that open: NCCL_IB_HCA=…",
    )
