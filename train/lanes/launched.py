"""What the launcher started this process as, and whether that is what was asked for.

Accelerate's launcher, torchrun and plain Python each tell it in variables, and none compares.
"""

import os
from contextlib import suppress
from typing import Any

import psutil
import torch
import torch.distributed as dist

from host import launcher, stages
from host.errors import HostError, UsageError
from host.lanes import share
from host.stages import Stages
from train.config import Config
from train.lanes import unasked


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


def sharded() -> bool:
    """Whether the hardware config asks for FSDP, which is then ours to start, and not Accelerate's:
    on a CPU it would make DDP of it without a word.

    Raises:
        HostError: it asks for another engine, or for what this trainer does not do with FSDP.
    """
    unasked.check()
    if not unasked.is_set("ACCELERATE_USE_FSDP"):
        return False
    del os.environ["ACCELERATE_USE_FSDP"]
    wrong = [
        f"{name.lower()}: {said}"
        for name, usual in _FSDP.items()
        if (said := os.environ.get(name, usual).lower()) != usual
    ]
    if wrong:
        raise HostError(
            f"the hardware config says {wrong[0]}, which this trainer does not do",
            "use configs/accelerate/fsdp.yaml"
            + ", and --model.activation_checkpointing true" * ("activation" in wrong[0])
            + ", and --optim.offload true" * ("offload_params" in wrong[0]),
        )
    return True


# What a hardware config can say of FSDP and would be left undone; what else it can say has no
# sense in FSDP2, or is about its state dicts, which are not used here.
_FSDP = {
    "FSDP_VERSION": "2",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
    "FSDP_AUTO_WRAP_POLICY": "",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "",
    "FSDP_IGNORED_MODULES": "",
}


def gathers_again() -> bool:
    """Whether FSDP frees a block's whole weights after its forward pass, as it does by default."""
    return os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() != "false"


def check_sharded(config: Config, precision: str) -> None:
    """Refuse what a sharded training would do otherwise, or not at all.

    Raises:
        UsageError: naming the knob.
    """
    share(
        config.lanes,
        launcher.world() or 1,
        batch=config.batch_size,
        level=config.reproducibility,
        asked=os.environ.get("SHARES"),
        sharded=True,
    )
    check_shardable(config, precision)


def spread(config: Config, precision: str, *, shards: bool) -> tuple[bool, Stages | None]:
    """Whether weights are to be sharded, and into how many stages the model is to be cut.

    Args:
        shards: whether either can be had here.

    Raises:
        HostError, UsageError: it cannot, or not so.
    """
    found, staged = sharded(), stages.asked(os.environ)
    words = staged.words if staged else "ACCELERATE=fsdp"
    if (found or staged) and not shards:
        raise UsageError(
            f"{words} is for make train, and a checkpoint is read as a whole", "leave it out here"
        )
    if staged is not None:
        stages.check(
            staged,
            launcher.world() or 1,
            lanes=config.lanes,
            level=config.reproducibility,
            precision=precision,
            sharded=found,
            shares=os.environ.get("SHARES"),
            elastic=launcher.elastic() is not None,
            model=config.model,
        )
    check_meeting()
    if found and (launcher.world() or 1) > 1:
        # Before they meet: who leaves while others still connect is lost to them.
        check_sharded(config, precision)
    return found, staged


def check_shardable(config: Config, precision: str) -> None:
    """Refuse what no number of processes would train sharded.

    Raises:
        UsageError: naming the knob.
    """
    from torch.distributed.fsdp import FSDPModule  # a second of imports

    without = "or leave ACCELERATE=fsdp out"
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        # Where one process has a gradient and another has none, they would exchange other tensors.
        raise UsageError(
            f"PyTorch {torch.__version__} cannot sum gradients of sharded weights that only some"
            " processes have; that of CUDA=cuda13 can",
            f"CUDA=cuda13 on a machine whose driver takes it (make doctor), {without}",
        )
    if precision == "fp16":
        raise UsageError("FP16's loss scaler is not for sharded weights", f"use bf16, {without}")
    if config.optim.name in ("lamb", "muon"):
        raise UsageError(
            f"optim.name {config.optim.name} looks at whole tensors, and each process has a part",
            f"use sgd or adamw, {without}",
        )
    if config.optim.name == "adamw" and config.portable:
        raise UsageError(
            "numerics: portable takes AdamW's fused form, whose bits follow how tensors are cut",
            f"use --optim.name sgd or --numerics native, {without}",
        )
    for knob in ("compile", "channels_last"):
        if getattr(config.model, knob):
            raise UsageError(f"model.{knob} is not for sharded weights", f"drop it, {without}")


def check_meeting() -> None:
    """Refuse to be one of several that were not told where to meet."""
    if (launcher.world() or 1) > 1:
        missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
        if missing:
            raise HostError(
                f"WORLD_SIZE={launcher.world()} without {' and '.join(missing)}",
                "start with make, accelerate launch or torchrun, which set them all; or unset it",
            )


def precision() -> str:
    """The precision that Accelerate's launcher says."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()


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


def agree(staged: Stages | None, sharded: bool, control: dist.ProcessGroup, world: int) -> None:
    """See that all processes are to have the model in the same way, before they wait for what only
    some would do.

    Raises:
        UsageError: on every process.
    """
    mine = "ACCELERATE=fsdp" if sharded else staged.words if staged else "whole models"
    every: list[Any] = [None] * world
    dist.all_gather_object(every, mine, group=control)
    other = next((rank for rank, words in enumerate(every) if words != every[0]), None)
    if other is not None:
        raise UsageError(
            f"process 0 has {every[0]}, and process {other} has {every[other]}",
            "start all of them with the same STAGES and ACCELERATE",
        )
