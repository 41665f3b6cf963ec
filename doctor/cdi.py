"""What a CDI description of NVIDIA's GPUs hands over to a container."""

from __future__ import annotations

import re

from host.machine import Machine

_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")


_NODE = re.compile(
    r"""["']?path["']?\s*:\s*["']?(/dev/nvidia-(?:uvm|caps)[\w/-]*)["']?,?\s*"""
    r"""(?:["']?\w+["']?\s*:\s*["']?[\w/-]+["']?,?\s*){0,4}?["']?major["']?\s*:\s*(\d+)"""
)


def of_gpus(machine: Machine) -> str | None:
    """The file of one of NVIDIA's GPUs."""
    for folder in _FOLDERS:
        for name in machine.names(folder):
            if "nvidia.com/gpu" in (machine.read(f"{folder}/{name}") or ""):
                return f"{folder}/{name}"
    return None


def other_number(machine: Machine) -> tuple[str, str, str, str] | None:
    """One that hands over a device by a number that the kernel gave to another one since: the file,
    the device, the number it has there, and its own.
    """
    devices = machine.read("/proc/devices") or ""
    given = dict(re.findall(r"^\s*(\d+) (nvidia-(?:uvm|caps))$", devices, re.MULTILINE))
    own = {name: number for number, name in given.items()}
    for folder in _FOLDERS:
        for name in machine.names(folder):
            for device, number in _NODE.findall(machine.read(f"{folder}/{name}") or ""):
                kind = "nvidia-uvm" if "uvm" in device else "nvidia-caps"
                if own.get(kind, number) != number:
                    return f"{folder}/{name}", device, number, own[kind]
    return None


def without_memory_device(machine: Machine) -> str | None:
    """The file of one that hands over GPUs, and not the device for their memory."""
    for folder in _FOLDERS:
        for name in machine.names(folder):
            text = machine.read(f"{folder}/{name}") or ""
            gpus = "nvidia.com/gpu" in text and re.search(r"/dev/nvidia\d", text)
            if gpus and "nvidia-uvm" not in text and "/dev/dxg" not in text:
                return f"{folder}/{name}"
    return None
