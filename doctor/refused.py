"""Why the kernel that runs takes no module, whichever it is: nothing that is built would help."""

from __future__ import annotations

import re
from typing import Tuple

from doctor import distribution, log
from host import limits
from host.machine import Machine

Why = Tuple[str, str, str]
_SHUT = "/proc/sys/kernel/modules_disabled"
_KEPT = re.compile(r"\b(?:module_blacklist|modprobe\.blacklist)=(?:[\w,-]*,)?nvidia(?=[,\s]|$)")
_ENTRY = (
    "take it out of the boot entry (GRUB: /etc/default/grub, then sudo update-grub, or"
    " grub2-mkconfig -o /boot/grub2/grub.cfg), and sudo reboot"
)


def reason(machine: Machine) -> Why | None:
    """What is seen, why, and what helps; None: nothing speaks against a module."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    kernels = [] if limits.in_container(machine.root) else machine.names("/lib/modules")
    if kernels and re.fullmatch(r"[\w.+~-]+", running, re.ASCII) and running not in kernels:
        return (
            f"the modules of the kernel that runs ({running}) are gone from the disk",
            "its package was replaced since the machine was started",
            "sudo reboot",
        )
    if (machine.read(_SHUT) or "").strip() == "1":
        return (
            "the kernel takes no more modules (kernel.modules_disabled = 1)",
            "a setting shuts it before the driver's are loaded",
            (
                "take it out of /etc/sysctl.d; or name nvidia and nvidia_uvm in"
                " /etc/modules-load.d; then sudo reboot"
            ),
        )
    kept = _KEPT.search(machine.read("/proc/cmdline") or "")
    if kept is not None:
        return (
            f"the kernel's command line keeps its module away ({kept.group()[:60]})",
            "whoever wrote that wanted no NVIDIA driver",
            _ENTRY,
        )
    row = log.last(machine, r"nvidia\w*: \S+ invalid for parameter") or ""
    told = re.search(r"(nvidia\w*): (\S+) invalid for parameter [`'](\w+)'", row)
    if told:
        first = distribution.initramfs(machine)
        given = f"{told.group(3)}={told.group(2)}"
        if f"{told.group(1)}.{told.group(3)}=" in (machine.read("/proc/cmdline") or ""):
            return (
                f"the module {told.group(1)} refuses what it is given: {given}",
                "the kernel's command line has a value that this option does not take",
                _ENTRY,
            )
        return (
            f"the module {told.group(1)} refuses what it is given: {given}",
            "a line of /etc/modprobe.d has a value that this option does not take",
            f"mend it: grep -r {told.group(3)} /etc/modprobe.d; sudo {first}; sudo modprobe nvidia",
        )
    return _unsupported(machine)


def _unsupported(machine: Machine) -> Why | None:
    """SUSE's kernels of Enterprise Linux take modules of others when they are told to."""
    if not log.last(machine, r"module 'nvidia\w*' is unsupported"):
        return None
    return (
        "the kernel takes no module that SUSE does not support",
        "allow_unsupported_modules is 0 in modprobe.d",
        (
            "echo allow_unsupported_modules 1 | sudo tee"
            " /etc/modprobe.d/10-unsupported-modules.conf; sudo dracut -f; sudo modprobe nvidia"
        ),
    )
