"""What the kernel says of the machine's memory: modules that fail, parts that nobody may use."""

from __future__ import annotations

import re
from contextlib import suppress

from doctor import log, nccl
from doctor.finding import Finding, fail, warn
from host import limits, meminfo, pci, visible
from host.machine import Machine
from host.text import whole

_MANY = 1000
_ASIDE = 0.25  # of the memory
_COUNTS = "/sys/devices/system/edac/mc"
# Corrected ones count by EDAC; a page that could not be taken out of use says so in other words.
_POISONED = re.compile(
    r"(?:Memory failure:|MCE:?) ?0x\w+: (?:Sending SIGBUS to|Killing) ([\w.-]+):\d+"
)


def failing(machine: Machine) -> Finding | None:
    """A module whose errors could not be corrected."""
    row = log.last(machine, r"EDAC MC\d+: \d+ UE ") or ""
    where = re.search(r"EDAC MC\d+: \d+ UE .*? on (\S+)", row)
    counted = [
        name
        for name in machine.names(_COUNTS)
        if (whole(machine.read(f"{_COUNTS}/{name}/ue_count")) or 0) > 0
    ]
    if limits.in_container(machine.root) or not (row or counted):
        return None
    place = where.group(1) if where else counted[0] if counted else "a module"
    return fail(
        "memory",
        f"errors that could not be corrected (ECC): {place}",
        "a module of the machine's memory fails: weights may be wrong, the machine may freeze",
        "have that module replaced; which one it is: sudo ras-mc-ctl --error-count, or dmesg | grep"
        " EDAC",
    )


def poisoned(machine: Machine, seen: str) -> Finding | None:
    """A page whose content was lost, and whose program was ended; the page is out of use.

    https://docs.kernel.org/mm/hwpoison.html
    """
    found = [x for x in map(_POISONED.search, log.lines(machine) or []) if x]
    # The memory of Grace's GPUs is the kernel's as well, and has rows of its own.
    shared = any(re.search(r"\bG[BH]\d", gpu.name) for gpu in visible.seen(machine))
    if limits.in_container(machine.root) or not found or shared:
        return None
    times = f", {len(found)} times" * (len(found) > 1)
    return warn(
        "memory",
        f"{seen}; a page of it could not be read, and the kernel ended {found[-1].group(1)}{times}",
        "a module of the machine's memory fails: what is in it ends with Bus error",
        "have that module replaced; which one it is: sudo ras-mc-ctl --errors, sudo ipmitool sel"
        " list, or sudo dmesg | grep -i -A9 'hardware error'",
    )


def corrected(machine: Machine, seen: str) -> Finding | None:
    """A module whose errors are corrected by the thousand, for now."""
    told = [
        re.search(r"EDAC MC(\d+): (\d+) CE .*? on (\S+)", row) for row in log.lines(machine) or []
    ]
    count = sum(int(row.group(2)) for row in told if row)
    for name in machine.names(_COUNTS):
        count = max(count, whole(machine.read(f"{_COUNTS}/{name}/ce_count")) or 0)
    if limits.in_container(machine.root) or count < _MANY:
        return None
    place = next((f": {row.group(3)}" for row in reversed(told) if row), "")
    return warn(
        "memory",
        f"{seen}; {count:,} errors were corrected (ECC){place}",
        "a module is going bad: the next ones may not be corrected, and the machine stops",
        "have that module replaced (sudo dmidecode -t memory says where it is)",
    )


def set_aside(machine: Machine, seen: str) -> Finding | None:
    """Memory that is kept for huge pages, and that nobody uses."""
    total, free = meminfo.total(machine.root), meminfo.huge_free(machine.root)
    if total is None or free < _ASIDE * total:
        return None
    return warn(
        "memory",
        f"{seen}, of which {free / 2**30:.1f} are set aside as huge pages that nobody uses",
        "other programs do not get them, a training neither",
        "sudo sysctl vm.nr_hugepages=0, and take it out of /etc/sysctl.d (or hugepages= out of the"
        " kernel's command line)",
    )


def bare(machine: Machine, seen: str) -> Finding | None:
    """A part of the processors has no memory of its own, where NCCL looks for some.

    https://github.com/NVIDIA/nccl/pull/2059
    """
    if nccl.told(machine, "NCCL_CUMEM_HOST_ENABLE") == "0":
        return None
    cpus, memory = (_nodes(machine, name) for name in ("has_cpu", "has_memory"))
    if cpus <= memory or not memory or len(visible.seen(machine)) < 2:
        return None
    beside = {whole(machine.read(f"{card.path}/numa_node")) for card in pci.cards(machine)}
    if not beside & {None, *(cpus - memory)}:
        return None
    return warn(
        "memory",
        f"{seen}; {len(cpus - memory)} of {len(cpus)} NUMA nodes with processors have none",
        "NCCL of PyTorch from 2.7 on takes memory beside each GPU, and ends where there is none:"
        " Error while attaching to shared memory segment",
        "export NCCL_CUMEM_HOST_ENABLE=0; for good a module in each channel, or NPS1 in the BIOS",
    )


def _nodes(machine: Machine, name: str) -> set[int]:
    """Numbers of the NUMA nodes that have something; none where the system does not say."""
    with suppress(ValueError):
        return limits.listed(machine.read(f"/sys/devices/system/node/{name}") or "")
    return set()


def strict(machine: Machine, seen: str) -> Finding | None:
    """The kernel hands out no more than there is, used or not."""
    mode = (machine.read("/proc/sys/vm/overcommit_memory") or "").strip()
    limit, total = (meminfo.row(machine.root, name) or 0 for name in ("CommitLimit", "MemTotal"))
    if mode != "2" or limit > 2 * total > 0:
        return None
    return warn(
        "memory",
        f"{seen}; no more is promised than there is (vm.overcommit_memory 2)",
        "torch reserves far more than it uses, and so does each loader process: Cannot allocate"
        " memory, while most of it is free",
        "sudo sysctl vm.overcommit_memory=0, and take it out of /etc/sysctl.d",
    )
