"""Which GPUs a container gets, and the Compose file that asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from host import limits, plan
from host.cuda import Driver
from host.docker import no_toolkit


def choose(
    environ: Mapping[str, str], driver: Driver | None, handover: str | None
) -> tuple[list[str], dict[str, str], str]:
    """Compose files to add, variables for them, and what is to be said ("" mostly).

    Args:
        handover: how the engine can hand GPUs over (nvidia, cdi, or None).

    Raises:
        HostError: more GPUs are asked for than there are, or they cannot be handed over.
        UsageError: a variable has no sense.
    """
    gpus = driver.gpus if driver else []
    if plan.on_cpu(environ):
        return [], {}, ""
    planned = plan.make(environ, len(gpus))
    if not gpus:
        hidden = driver is not None and environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
        return [], {}, "training on the CPU: CUDA_VISIBLE_DEVICES hides all GPUs" * hidden
    if handover is None:
        refusal = no_toolkit(len(gpus))
        if environ.get("GPUS"):
            raise refusal
        return [], {}, f"training on the CPU: {refusal}"
    if environ.get("GPUS", "").isdigit():
        gpus = gpus[: planned.processes]
    names = ",".join(gpu.uuid for gpu in gpus)
    if handover == "cdi":
        # By name: CUDA counts the fastest first.
        # What .env says of CDI_GPU is for Compose without make.
        which = {"CUDA_VISIBLE_DEVICES": names, "CDI_GPU": "all"}
        return ["docker-compose.cdi.yml"], which, ""
    in_job = limits.in_job(environ)  # which counts its own GPUs, and the engine the machine's
    if in_job or environ.get("CUDA_VISIBLE_DEVICES") is not None:
        numbers = ",".join(gpu.index for gpu in gpus)
        which = {"GPU_IDS": names if in_job else numbers}
        return ["docker-compose.gpu-ids.yml"], which, ""
    return ["docker-compose.gpu.yml"], {}, ""


def infiniband() -> list[str]:
    """The Compose file that hands InfiniBand's devices over, where the host has any."""
    return ["docker-compose.infiniband.yml"] if Path("/dev/infiniband").is_dir() else []
