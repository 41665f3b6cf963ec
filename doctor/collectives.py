"""What NCCL is told by variables or its file that makes it slow, or end."""

from __future__ import annotations

import re

from doctor import nccl, topology
from doctor.finding import Finding, warn
from host import fleet, visible
from host.machine import Machine
from host.text import whole

_NAME = "variables"


def told(machine: Machine) -> Finding | None:
    """The first of them."""
    return _by_memory(machine) or _algorithm(machine) or _by_sockets(machine)


# What keeps GPUs from reading each other; levels had numbers before they had names.
_SHUT = {"NCCL_P2P_LEVEL": ("LOC", "0"), "NCCL_P2P_DISABLE": ("1",)}


def _by_memory(machine: Machine) -> Finding | None:
    """NCCL is told not to let GPUs read each other, and they have NVLink."""
    told = [name for name, values in _SHUT.items() if nccl.told(machine, name) in values]
    if not told or not _linked(machine):
        return None
    return warn(
        _NAME,
        f"{told[0]}={nccl.told(machine, told[0])}, and the GPUs have NVLink",
        "NCCL goes through the machine's memory in its place, which is many times slower",
        f"{nccl.undo(machine, told[0])}, unless what it was set for is not mended",
    )


def _linked(machine: Machine) -> bool:
    """Whether the GPUs have NVLink."""
    several = len(visible.seen(machine)) > 1
    said = machine.run("nvidia-smi", "nvlink", "-s").out
    return several and re.search(r"Link \d+: [\d.]+ GB/s", said) is not None


def _algorithm(machine: Machine) -> Finding | None:
    """NCCL is told one algorithm, which not every operation has.

    https://github.com/pytorch/pytorch/pull/163063
    """
    value = nccl.told(machine, "NCCL_ALGO")
    first = value.lower().split(";")[0]  # for all operations, where it names none
    several = len(visible.seen(machine)) > 1 or fleet.several(machine.environ)
    if not several or not first or first[0] == "^" or ":" in first or "ring" in first.split(","):
        return None
    return warn(
        _NAME,
        f"NCCL_ALGO={value}",
        "operations that do not have it end: no algorithm/protocol available for function",
        nccl.undo(machine, "NCCL_ALGO") + f"; or NCCL_ALGO={value},Ring" * (";" not in value),
    )


def _by_sockets(machine: Machine) -> Finding | None:
    """NCCL is told to leave out shared memory, or to take one protocol.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    alone = not fleet.several(machine.environ)
    gpus = visible.seen(machine)
    numbers = [number for gpu in gpus if (number := whole(gpu.index)) is not None]
    if alone and _linked(machine) and not topology.apart(machine, numbers):
        return None  # nothing goes another way
    shared = len(gpus) > 1
    reach = topology.matrix(machine, "-p2p", "r")
    straight = bool(reach) and all(word == "OK" for (a, b), word in reach.items() if a != b)
    straight = straight and not any(nccl.told(machine, name) in _SHUT[name] for name in _SHUT)
    if shared and not straight and nccl.told(machine, "NCCL_SHM_DISABLE") == "1":
        return warn(
            _NAME,
            "NCCL_SHM_DISABLE=1",
            "GPUs that do not reach each other directly talk over the network: many times slower",
            f"{nccl.undo(machine, 'NCCL_SHM_DISABLE')}, unless what it was set for is not mended",
        )
    if (shared or not alone) and nccl.told(machine, "NCCL_PROTO").upper() == "LL128":
        return warn(
            _NAME,
            "NCCL_PROTO=LL128",
            "where links do not keep the order of writes that protocol gives wrong results",
            nccl.undo(machine, "NCCL_PROTO"),
        )
    return None
