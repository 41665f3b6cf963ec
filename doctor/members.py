"""The groups to whom the GPUs' devices belong, and how a user gets into one."""

from __future__ import annotations

import re

from doctor import kind
from host import limits, nvidia
from host.machine import Machine


def join(machine: Machine) -> str:
    """How a user gets to the GPUs' devices."""
    if kind.is_lxc(machine) and "65534" in machine.run("stat", "-c", "%g", "/dev/nvidia0").out:
        return (
            "on the host: devN: /dev/nvidia0,gid=44,mode=0666 in this container's configuration,"
            " and so for nvidiactl and nvidia-uvm; or options nvidia NVreg_DeviceFileMode=0666"
        )
    group = _group(machine)
    if machine.exists("/run/.containerenv"):
        return (
            "podman run --group-add keep-groups, you being in the group of /dev/nvidia0 on the"
            " host; with SELinux --security-opt label=disable, or sudo setsebool -P"
            " container_use_devices 1; or options nvidia NVreg_DeviceFileMode=0666 on the host"
        )
    if limits.in_container(machine.root):
        return (
            f"start the container with --group-add {group} (by number where the image does not know"
            " that group: ls -ln /dev/nvidia0 on the host)"
        )
    return f"sudo usermod -aG {group} $USER   # and log in again"


def _group(machine: Machine) -> str:
    """The groups to whom the GPUs' devices belong."""
    told = re.search(
        r"DeviceFileGID: *([1-9][0-9]*)", machine.read("/proc/driver/nvidia/params") or ""
    )
    if told:
        row = rf"^([a-z_][\w-]*):[^:]*:{told.group(1)}:"
        named = re.search(row, machine.read("/etc/group") or "", re.MULTILINE)
        return named.group(1) if named else told.group(1)
    device = next(iter(nvidia.devices(machine)), "nvidia0")
    group = machine.run("stat", "-c", "%G", f"/dev/{device}").out.strip()
    return group if re.fullmatch(r"[a-z_][\w-]*", group) and group != "root" else "video,render"
