"""How the files are installed that modules for the running kernel are built with."""

from __future__ import annotations

import re

from doctor import distribution
from host.machine import Machine

_PACKAGES = {
    **dict.fromkeys(("fedora", "rhel"), "sudo dnf install kernel-devel-$(uname -r)"),
    "arch": "sudo pacman -S linux-headers   # of the kernel that runs: linux-lts-headers and so on",
    "suse": "sudo zypper install kernel-default-devel",
    "void": "sudo xbps-install linux-headers",
    **dict.fromkeys(("azurelinux", "mariner"), "sudo tdnf install kernel-devel-$(uname -r)"),
}
_APT = (
    "sudo apt-get install linux-headers-$(uname -r)   # for good, the package of headers that"
    " follows your kernels (linux-headers-amd64, -cloud-amd64, -generic)"
)


def install(machine: Machine) -> str:
    """How the files are installed that modules for the running kernel are built with."""
    if "-pve" in (machine.read("/proc/sys/kernel/osrelease") or ""):
        return "sudo apt-get install proxmox-default-headers   # of Proxmox; pve-headers before 8"
    running = machine.read("/proc/sys/kernel/osrelease") or ""
    if "uek" in running:
        return distribution.of(machine, {}, "sudo dnf install kernel-uek-devel-$(uname -r)")
    amazons = re.match(r"6\.(1[2-9]|[2-9]\d)\.\d+-.*\.amzn2023", running)
    if amazons:  # from 6.12 on its packages are called after the kernel
        own = f"kernel6.{amazons.group(1)}-devel"
        return f"sudo dnf install {own}-$(uname -r) || sudo dnf install {own}"
    kernel = distribution.kernel_of_arch(machine)
    if kernel is not None:
        return f"sudo pacman -S {kernel}-headers"
    return distribution.of(machine, _PACKAGES, _APT)


def then(machine: Machine, command_after: str) -> str:
    """How they are installed, and what is to follow; what explains it comes last."""
    command, _, note = install(machine).partition("   # ")
    return f"{command}; {command_after}" + (f"   # {note}" if note else "")
