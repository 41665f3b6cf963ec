"""What the launcher started this process as, and whether that is what was asked for.

Accelerate's launcher, torchrun and plain Python each tell it in variables, and none compares.
"""

import os
from contextlib import suppress

import psutil
import torch

from host import launcher
from host.errors import HostError


def compare(came: int) -> None:
    """Refuse to be one of several trainers that each believe they are alone."""
    told = launcher.world()
    wanted = None if told is None else str(told)
    if wanted is None and by_launcher() and "MASTER_ADDR" in os.environ:
        # Accelerate's launcher for one process starts one, however many it was asked for, by flag
        # or by config; that it was asked for more shows only in its having named an address.
        with suppress(psutil.Error):
            if "MASTER_ADDR" not in psutil.Process(os.getppid()).environ():
                wanted = "several"
    if wanted is not None and wanted != str(came):
        raise HostError(
            f"{wanted} processes were asked for and {came} came up",
            "use configs/accelerate/multi_gpu.yaml or multi_cpu.yaml, or `make train CPUS=N`",
        )


def refuse_engines() -> None:
    """What shards or splits the model adds up gradients in its own way, or not at all on a CPU."""
    for engine in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        if os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() in ("true", "1"):
            raise HostError(
                f"the hardware config asks for {engine}, which this trainer does not do",
                "use one of configs/accelerate",
            )


def check_meeting() -> None:
    """Refuse to be one of several that were not told where to meet."""
    if (launcher.world() or 1) > 1:
        missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
        if missing:
            raise HostError(
                f"WORLD_SIZE={launcher.world()} without {' and '.join(missing)}",
                "start with make, accelerate launch or torchrun, which set them all; or unset it",
            )


def by_launcher() -> bool:
    """Whether Accelerate's launcher started this process; it always says which precision."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ


def use_cpu() -> bool:
    """Whether to compute on the CPU; a hardware config that wants GPUs must not end up there."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1"):
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1,-1":  # how multi_cpu.yaml hides all GPUs
        return True
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = 1 if share_gpu() else launcher.local_world()
    if (by_launcher() or gpus) and gpus < local:
        raise HostError(
            f"{local} GPU process{'es' * (local > 1)} asked for on this machine, where torch sees"
            f" {gpus} GPU{'s' * (gpus != 1)}",
            "use configs/accelerate/cpu.yaml or multi_cpu.yaml, or hide the GPUs from torchrun"
            " with CUDA_VISIBLE_DEVICES=-1"
            if gpus == 0 or not by_launcher()
            else f"use --num_processes {gpus}",
        )
    return gpus == 0


def share_gpu() -> bool:
    """Whether processes may share a GPU. NCCL refuses that, so they talk over gloo: slow, and for
    those who want to see on one GPU that several processes end in the same bits.
    """
    return os.environ.get("LOCKSTEP_SHARE_GPU") == "1"
