"""Docker Desktop, whose engine runs in a machine of its own."""

from __future__ import annotations

import re

from doctor import wsl
from doctor.engine import told
from doctor.finding import Finding, fail
from host.machine import Machine

WHY = (
    "Docker Desktop runs its engine in a machine without GPUs: only on Windows it hands them over",
    "install Docker Engine beside it, and docker context use default; or ENGINE=local",
)
DXGDMAL = "libnvdxgdmal.so.1"
_KNOWS = (4, 31)  # the first release that hands it over


def answers(machine: Machine) -> bool:
    """Whether the engine is Docker Desktop's on Linux, whose machine has no GPUs."""
    return not wsl.is_windows(machine) and "Docker Desktop" in told(machine, "OperatingSystem")


def old(machine: Machine) -> Finding | None:
    """Docker Desktop's own toolkit is older than Windows' driver.

    https://github.com/NVIDIA/nvidia-container-toolkit/issues/520
    """
    if not wants_dxgdmal(machine):
        return None
    told = re.search(r"Docker Desktop (\d{1,3})\.(\d{1,3})", machine.run("docker", "version").out)
    if told is None or (int(told.group(1)), int(told.group(2))) >= _KNOWS:
        return None
    return fail(
        "toolkit",
        f"{told.group()}, which does not hand {DXGDMAL} to containers",
        "Windows' driver from 555 on needs it: CUDA ends there with error 500, named symbol not"
        " found",
        "update Docker Desktop to 4.31 or newer",
    )


def wants_dxgdmal(machine: Machine) -> bool:
    """Whether it is Windows' driver, of a release that cannot do without that library."""
    stores = [f"{wsl.DRIVERS}/{name}" for name in machine.names(wsl.DRIVERS)]
    return any(machine.exists(f"{folder}/{DXGDMAL}") for folder in (wsl.LIBRARIES, *stores))
