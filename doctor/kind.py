"""What kind of machine this is, where that changes what would help."""

from __future__ import annotations

import re

from host import limits
from host.machine import Machine

# What firmware calls itself that a hypervisor made; no machine of metal at Amazon is one.
_GUEST = re.compile(
    "QEMU|KVM|Cloud Hypervisor|VMware|VirtualBox|Xen|Virtual Machine|Google Compute Engine"
    r"|OpenStack|KubeVirt|oVirt|\bRHEV\b|\bAHV\b|\bBHYVE\b|Parallels"
    r"|Amazon EC2 (?!.*metal)"
)
# Of SMBIOS: portable, laptop, notebook, sub-notebook, convertible, detachable.
_LAPTOPS = ("8", "9", "10", "14", "31", "32")


def is_guest(machine: Machine) -> bool:
    """Whether it is a virtual machine."""
    flags = machine.read("/proc/cpuinfo") or ""
    if re.search(r"^flags\s*:.*\bhypervisor\b", flags, re.MULTILINE):
        return True
    said = [
        machine.read(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")
    ]
    return _GUEST.search(" ".join(said)) is not None


def may(machine: Machine, capability: int) -> bool:
    """Whether this process has one of Linux's capabilities, by its number."""
    said = machine.read("/proc/self/status") or ""
    found = re.search(r"(?m)^CapEff:\s*([0-9a-f]{1,16})$", said)
    # Root of a space of users of its own is not the kernel's.
    space = (machine.read("/proc/self/uid_map") or "0 0 4294967295").split()
    if space != ["0", "0", "4294967295"]:
        return False
    return found is not None and bool(int(found.group(1), 16) >> capability & 1)


def is_rented(machine: Machine) -> bool:
    """Whether a cloud runs this virtual machine."""
    said = [
        machine.read(f"/sys/class/dmi/id/{name}") or ""
        for name in ("sys_vendor", "chassis_asset_tag")
    ]
    return (
        re.search(r"Amazon|Google|7783-7084|OracleCloud|Alibaba|Tencent", " ".join(said))
        is not None
    )


def user(machine: Machine) -> str:
    """Who asks, by number; empty where the system does not say."""
    return machine.run("id", "-u").out.strip()


def is_lxc(machine: Machine) -> bool:
    """Whether it is a container of LXC (Proxmox, Incus), with a system of its own."""
    said = (machine.environ.get("container"), machine.read("/run/systemd/container") or "")
    if "lxc" in [(each or "").strip() for each in said]:
        return True
    if machine.run("systemd-detect-virt").out.strip() == "lxc":
        return True
    # Files of /proc that tell such a container what it was given, and not the host.
    mounted = re.search(r"(?m)^lxcfs /proc/", machine.read("/proc/mounts") or "") is not None
    return mounted and not limits.in_container(machine.root)  # pods may have them as well


def is_flatpak(machine: Machine) -> bool:
    """Whether it is a Flatpak's own world, as that of VS Code's terminal may be."""
    return machine.exists("/.flatpak-info")


def is_apptainer(machine: Machine) -> bool:
    """Whether it is a container of Apptainer or Singularity."""
    return machine.exists("/.singularity.d")


def is_laptop(machine: Machine) -> bool:
    """Whether its GPU is soldered in, and nobody can seat it again."""
    return (machine.read("/sys/class/dmi/id/chassis_type") or "") in _LAPTOPS


def is_jetson(machine: Machine) -> bool:
    """Whether its GPU is one of NVIDIA's Tegra, which no bus shows."""
    if "nvidia,tegra" in (machine.read("/proc/device-tree/compatible") or ""):
        return True
    # In a container without the device tree.
    model = machine.read("/proc/device-tree/model") or ""
    return "Jetson" in model or machine.exists("/dev/nvmap")
