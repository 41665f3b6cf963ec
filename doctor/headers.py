"""How the files are installed that modules for the running kernel are built with."""

from __future__ import annotations

import re

from doctor import distribution
from host.machine import Machine

_PACKAGES = {
    **dict.fromkeys(
        ("fedora", "rhel"),
        "sudo dnf install kernel-devel-$(uname -r)   # no longer to be had: sudo dnf upgrade"
        " kernel, reboot, and that of the new one",
    ),
    "arch": "sudo pacman -S linux-headers   # of the kernel that runs: linux-lts-headers and so on",
    "suse": "sudo zypper install kernel-default-devel",
    "void": "sudo xbps-install linux-headers",
    **dict.fromkeys(("azurelinux", "mariner"), "sudo tdnf install kernel-devel-$(uname -r)"),
}
# Kernels that are not the distribution's usual one, by their release.
_KERNELS = (
    (
        "-pve$",
        "sudo apt-get install proxmox-headers-$(uname -r)   # of Proxmox; pve-headers- before 8",
    ),
    (
        r"-0\d{5}-generic$",
        "both linux-headers .deb of this mainline kernel, from where it came; or Ubuntu's kernel",
    ),
    (
        r"\.elrepo\.",
        "sudo dnf --enablerepo=elrepo-kernel install kernel-ml-devel   # or kernel-lt-devel",
    ),
    (r"\+64k$", "sudo dnf install kernel-64k-devel"),
    (r"-cachyos\d*\.", "sudo dnf install kernel-cachyos-devel-matched"),
)
_APT = (
    "sudo apt-get install linux-headers-$(uname -r)   # for good, the package of headers that"
    " follows your kernels (linux-headers-amd64, -cloud-amd64, -generic)"
)


def install(machine: Machine) -> str:
    """How the files are installed that modules for the running kernel are built with."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    other = next((fix for sign, fix in _KERNELS if re.search(sign, running)), None)
    if other is not None:
        return other
    named = re.match(r"(\d+)\.(\d+)\..*(?:(?:MANJARO)|(-cachyos(?:-[a-z-]+)?))$", running)
    if named:  # of Arch's kin, each with packages called after the kernel
        own = named.group(3) or f"{named.group(1)}{named.group(2)}"
        return f"sudo pacman -S linux{own}-headers"
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
