"""GPUs that let one process compute, and have one."""

from __future__ import annotations

from dataclasses import dataclass

from host import apps, nvidia
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
    app: apps.App | None


def served(machine: Machine, gpus: list[nvidia.Gpu]) -> list[nvidia.Gpu]:
    """Those of these GPUs that an MPS server has, which shares one among programs on purpose."""
    servers = [app.uuid for app in apps.computing(machine) if "nvidia-cuda-mps-server" in app.name]
    return [gpu for gpu in gpus if gpu.uuid in servers]


def held(machine: Machine, gpus: list[nvidia.Gpu]) -> list[Held]:
    """Those of these GPUs.

    A process of another container is not shown, nor one that is left of a dead job: more memory is
    used then than on other GPUs of that kind. An MPS server has a GPU to share it.
    """
    modes = {gpu.index: gpu.text("compute_mode") or "" for gpu in nvidia.health(machine)}
    drawing = {gpu.uuid for gpu in gpus if gpu.text("display_active") == "Enabled"}
    computing = {
        app.uuid: app
        for app in apps.computing(machine)
        if not (app.uuid in drawing and apps.is_small(app))
    }
    shared = {gpu.uuid for gpu in served(machine, gpus)}
    found = []
    for gpu in gpus:
        mode = modes.get(gpu.index, "")
        alike = [g.number("memory.used") or 0 for g in gpus if g.name == gpu.name]
        more = (gpu.number("memory.used") or 0) - min(alike)
        if (
            gpu.uuid not in shared
            and mode.startswith("Exclusive")
            # What draws is not kept from it, and is not listed.
            and (gpu.uuid in computing or (more > _CONTEXT and gpu.uuid not in drawing))
        ):
            found.append(Held(gpu, mode, computing.get(gpu.uuid)))
    return found
