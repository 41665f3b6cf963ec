"""The number of the device of CUDA's memory, which may be another one after each start."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, fail
from host.machine import Machine

_DEVICE = "/dev/nvidia-uvm"


def changed(machine: Machine, version: str) -> Finding | None:
    """A container has, or may open, the number of before.

    https://github.com/NVIDIA/k8s-device-plugin/issues/222
    """
    told = re.search(r"(?m)^\s*(\d+) nvidia-uvm$", machine.read("/proc/devices") or "")
    has = machine.run("stat", "-c", "%t", _DEVICE).out.strip()
    if told is None or not machine.exists(_DEVICE):
        return None
    number = int(told.group(1))
    why = "the number changes as the host starts: nvidia-smi works, and CUDA does not start (999)"
    if re.fullmatch("[0-9a-f]{1,4}", has) and int(has, 16) != number:
        return fail(
            "driver",
            f"{version}; {_DEVICE} has the number {int(has, 16)} here, and the host's has {number}",
            why,
            "delete this container or pod, and start it anew; on the host nvidia_uvm is to be"
            " loaded before the engine starts",
        )
    shut = machine.run("dd", f"if={_DEVICE}", "of=/dev/null", "count=0").said
    if not kind.is_lxc(machine) or "not permitted" not in shut:
        return None
    return fail(
        "driver",
        f"{version}; this LXC container may not open {_DEVICE}, whose number is {number}",
        why,
        f"lxc.cgroup2.devices.allow: c {number}:* rwm in its configuration on the host (Proxmox:"
        f" dev0: {_DEVICE}, which needs no number), and start it anew",
    )
