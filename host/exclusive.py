"""GPUs that let one process compute, and have one."""

from __future__ import annotations

from dataclasses import dataclass

from host import nvidia
from host.machine import Machine

# MiB that CUDA takes for a process at the least, beyond what GPUs of a kind have at rest.
_CONTEXT = 256


@dataclass(frozen=True)
class Held:
    """A GPU that CUDA refuses to all others.

    Attributes:
        mode: as the driver says it, such as Exclusive_Process.
        app: who has it; None where the driver does not show that one.
    """

    gpu: nvidia.Gpu
    mode: str
    app: nvidia.App | None


def held(machine: Machine, gpus: list[nvidia.Gpu]) -> list[Held]:
    """Those of these GPUs.

    A process of another container is not shown, nor one that is left of a dead job: more memory is
    used then than on other GPUs of that kind.
    """
    modes = {gpu.index: gpu.text("compute_mode") or "" for gpu in nvidia.health(machine)}
    apps = {app.uuid: app for app in nvidia.apps(machine)}
    found = []
    for gpu in gpus:
        mode = modes.get(gpu.index, "")
        alike = [g.number("memory.used") or 0 for g in gpus if g.name == gpu.name]
        more = (gpu.number("memory.used") or 0) - min(alike)
        if mode.startswith("Exclusive") and (gpu.uuid in apps or more > _CONTEXT):
            found.append(Held(gpu, mode, apps.get(gpu.uuid)))
    return found
