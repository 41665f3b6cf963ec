"""GPUs that share the processor's memory: Grace Hopper, Grace Blackwell, Spark."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, warn
from host import nvidia, visible
from host.machine import Machine

_LOADED, _SLOW = 80, 0.4  # per cent; of the most


def apart(machine: Machine) -> Finding | None:
    """A GPU that shares the processor's page tables, where the kernel cannot."""
    sharing = _sharing(machine)
    asked = machine.run("nvidia-smi", "-q").out if sharing else ""
    stuck = _stuck(asked)
    slow = _crawling(machine, sharing) or (stuck and (sharing[0].label, *stuck))
    if slow is not None:
        return warn(
            "GPU health",
            f"{slow[0]}: {slow[1]} of {slow[2]} MHz under load, and nothing slows it",
            "the board is stuck in a state of low power",
            "shut down, take the power supply's plug out for minutes, and start: a reboot alone"
            " does not help",
        )
    if not re.search(r"^ *Addressing Mode *: *None *$", asked, re.MULTILINE):
        return None
    return fail(
        "GPU health",
        f"{sharing[0].label}: its addressing mode is None, not ATS",
        "it is to read the processor's page tables, and this kernel cannot: CUDA does not start",
        "boot a kernel with CONFIG_ARM_SMMU_V3_SVA=y (the maker's own has it)",
    )


def balanced(machine: Machine) -> Finding | None:
    """The kernel moves what such a GPU works on."""
    moved = (machine.read("/proc/sys/kernel/numa_balancing") or "").strip() not in ("", "0")
    if not moved or not _sharing(machine):
        return None
    return warn(
        "GPU health",
        "the kernel moves pages between memories by itself (kernel.numa_balancing)",
        "on a machine whose processor and GPU share memory that costs much, now and then",
        "sudo sysctl kernel.numa_balancing=0",
    )


def _sharing(machine: Machine) -> list[nvidia.Gpu]:
    """GPUs that share the processor's page tables."""
    return [gpu for gpu in visible.seen(machine) if re.search(r"\bG(B10|[BH]\d00)\b", gpu.name)]


def _crawling(machine: Machine, gpus: list[nvidia.Gpu]) -> tuple[str, int, int] | None:
    """Which GB10 that is, its clock and its most, of what nvidia-smi lists."""
    now = {gpu.index: gpu for gpu in nvidia.health(machine)}
    for gpu in (gpu for gpu in gpus if gpu.index in now and "GB10" in gpu.name):
        clock, load = map(now[gpu.index].number, ("clocks.sm", "utilization.gpu"))
        most, slowed = gpu.number("clocks.max.sm"), gpu.bits("clocks_throttle_reasons.active")
        if clock and most and load and load >= _LOADED and not slowed and clock < _SLOW * most:
            return gpu.label, int(clock), int(most)
    return None


def _stuck(asked: str) -> tuple[int, int] | None:
    """The clock, and the most that it can be, of a GPU that is busy and cool, and slow."""
    load = re.search(r"^ *GPU +: (\d+) %", asked, re.MULTILINE)
    clocks = re.findall(r"^ *SM +: (\d+) MHz", asked, re.MULTILINE)
    if load is None or int(load.group(1)) < _LOADED or len(clocks) < 2:
        return None
    now, most = int(clocks[0]), max(map(int, clocks))
    slowed = re.search(r"Slowdown +: Active|Power Cap +: Active", asked)
    return (now, most) if now < _SLOW * most and slowed is None else None
