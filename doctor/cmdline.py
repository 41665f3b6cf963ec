"""What the kernel was told at its start (/proc/cmdline) that takes processors or memory away.

https://docs.kernel.org/admin-guide/kernel-parameters.html
"""

from __future__ import annotations

import re

from doctor import kind, wsl
from doctor.finding import Finding, warn
from host import limits, meminfo, visible
from host.machine import Machine

_LOST = 0.8  # of what mem= allows: the kernel keeps a part for itself
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TAKE_OUT = (
    "take it out of the kernel's command line (GRUB: /etc/default/grub, then sudo update-grub, or"
    " grub2-mkconfig -o /boot/grub2/grub.cfg), and sudo reboot"
)


def processors(machine: Machine) -> Finding | None:
    """Most of them are kept out of the scheduler, or one alone is started."""
    said, online = machine.read("/proc/cmdline") or "", limits.online(machine.root) or 0
    if limits.in_container(machine.root) or not visible.seen(machine):
        return None
    single = re.search(r"(?:^|\s)(acpi=off|nosmp|maxcpus=[01]|nr_cpus=1)(?=\s|$)", said)
    if single and online == 1:
        return warn(
            "CPUs",
            f"1, and the kernel was started with {single.group(1)}",
            "with that it may start one processor alone, whatever the machine has",
            f"in Windows .wslconfig, [wsl2]: {_of_windows(single.group(1))}, and wsl --shutdown"
            if wsl.is_windows(machine)
            else _TAKE_OUT,
        )
    told = re.search(r"(?:^|\s)isolcpus=([\w,:-]+)", said)
    # Flags come first; without `domain` among them, the scheduler still uses those processors.
    flags = re.match(r"(?:(?:nohz|domain|managed_irq),)*", told.group(1)) if told else None
    if told is None or flags is None or (flags.group() and "domain" not in flags.group()):
        return None
    numbers = told.group(1)[flags.end() :]
    if not re.fullmatch(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", numbers) or not online:
        return None
    kept = len({each for each in limits.listed(numbers) if each < online})
    if 2 * kept <= online:
        return None
    return warn(
        "CPUs",
        f"{kept} of {online} are kept out of the scheduler (isolcpus={numbers})",
        "trainers and loader processes share the others: the GPUs wait for data",
        _TAKE_OUT,
    )


def _of_windows(word: str) -> str:
    return "processors=" if word.startswith("nr_cpus") else f"take {word} out of kernelCommandLine"


def memory(machine: Machine, seen: str) -> Finding | None:
    """A part of it is hidden by `mem=`."""
    said = machine.read("/proc/cmdline") or ""
    told = re.findall(r"(?:^|\s)mem=(\d{1,15})([kKmMgGtT]?)(?=\s|$)", said)
    total = meminfo.total(machine.root) or 0
    if not told or limits.in_container(machine.root) or kind.is_jetson(machine):
        return None
    most = int(told[-1][0]) * _UNITS[told[-1][1].upper()]
    if not _LOST * most <= total <= most:
        return None
    return warn(
        "memory",
        f"{seen}, and mem={''.join(told[-1])} hides what is above",
        "the kernel was told at its start to use no more of it",
        _TAKE_OUT,
    )
