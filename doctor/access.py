"""Whether programs reach the driver: the groups of its devices, and the library that is loaded."""

from __future__ import annotations

import re

from host import limits, nvidia
from host.machine import Machine


def join(machine: Machine) -> str:
    """How a user gets to the GPUs' devices."""
    group = _group(machine)
    if limits.in_container(machine.root):
        return (
            f"start the container with --group-add {group} (by number where the image does not know"
            " that group: ls -ln /dev/nvidia0 on the host)"
        )
    return f"sudo usermod -aG {group} $USER   # and log in again"


def hidden(machine: Machine) -> str | None:
    """A folder of LD_LIBRARY_PATH with CUDA's stub of the driver's library, or a compat one."""
    for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":"):
        stub = re.search(r"/(stubs|compat)/?$", folder)
        names = machine.names(folder) if stub else []
        if any(name.startswith("libcuda.so") for name in names):
            return folder
    return None


def met(machine: Machine) -> str | None:
    """The folder of an MPS daemon that is somebody else's: of the host, seen from a container."""
    folder = machine.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108
    if not limits.in_container(machine.root) or "control" not in machine.names(folder):
        return None
    number = (machine.read(f"{folder}/nvidia-cuda-mps-control.pid") or "").strip()
    return None if number and machine.exists(f"/proc/{number}") else folder


def denied(machine: Machine, device: str) -> str | None:
    """The group that a device belongs to, by number, where this user may not open it."""
    group = machine.run("stat", "-c", "%g", device).out.strip()
    if not group.isdigit() or machine.run("test", "-w", device).code != 1:
        return None
    return None if group in machine.run("id", "-G").out.split() else group


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
