"""What a CDI description of NVIDIA's GPUs hands over to a container."""

from __future__ import annotations

import re

from host.machine import Machine

_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")


def without_memory_device(machine: Machine) -> str | None:
    """The file of one that hands over GPUs, and not the device for their memory."""
    for folder in _FOLDERS:
        for name in machine.names(folder):
            text = machine.read(f"{folder}/{name}") or ""
            gpus = "nvidia.com/gpu" in text and re.search(r"/dev/nvidia\d", text)
            if gpus and "nvidia-uvm" not in text and "/dev/dxg" not in text:
                return f"{folder}/{name}"
    return None
