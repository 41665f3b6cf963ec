"""Which GPUs a container gets, and the Compose file that asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from container.driver import Driver, on_cpu
from container.engine import no_toolkit
from container.errors import HostError


def choose(
    environ: Mapping[str, str], driver: Driver | None, handover: str | None
) -> tuple[list[str], dict[str, str], str]:
    """Compose files to add, variables for them, and what is to be said ("" mostly).

    Args:
        handover: how the engine can hand GPUs over (nvidia, cdi, or None).

    Raises:
        HostError: more GPUs are asked for than there are, or they cannot be handed over.
    """
    gpus = driver.gpus if driver else []
    asked = environ.get("GPUS", "")
    if on_cpu(environ):
        return [], {}, ""
    if asked not in ("", "all") and not asked.isdigit():
        raise HostError(f"GPUS={asked} is no number of processes", "give a number or all", 2)
    if (asked.isdigit() and int(asked) > len(gpus)) or (asked == "all" and not gpus):
        raise HostError(
            f"GPUS={asked}, and {len(gpus) or 'no'} GPU{'s' * (len(gpus) != 1)} can be seen here",
            f"use {f'GPUS={len(gpus)}' if gpus else 'CPUS=1'},"
            " or check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        )
    if not gpus:
        hidden = driver is not None and environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
        return [], {}, "training on the CPU: CUDA_VISIBLE_DEVICES hides all GPUs" * hidden
    if handover is None:
        refusal = no_toolkit(len(gpus))
        if asked:
            raise refusal
        return [], {}, f"training on the CPU: {str(refusal).replace('error: ', '')}"
    chosen = [gpu.index for gpu in gpus]
    if asked.isdigit():
        chosen = chosen[: int(asked)]
    if handover == "cdi":
        # By name: CUDA counts the fastest first.
        names = [gpu.uuid for gpu in gpus][: len(chosen)]
        return ["docker-compose.cdi.yml"], {"CUDA_VISIBLE_DEVICES": ",".join(names)}, ""
    if environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return ["docker-compose.gpu-ids.yml"], {"GPU_IDS": ",".join(chosen)}, ""
    return ["docker-compose.gpu.yml"], {}, ""
