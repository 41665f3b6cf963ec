"""What an error of a library means for the user: a process is gone, or a GPU failed."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from host import kernel, launcher
from host.errors import HostError, LockstepError, LostPeers, UsageError
from train.config import Config
from train.lanes.pulse import Pulse
from train.process.exhausted import going_on, out_of_memory

# How gloo and NCCL say that a process is gone.
_GONE = ("closed by peer", "Connection reset", "Broken pipe", "Timed out waiting")
# How CUDA, its libraries and NVML say that something went wrong on a GPU.
_GPU_FAILED = re.compile(
    r"CUDA (driver )?error: |CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)|CUBLAS_STATUS_"
    r"|GPU is lost|unhandled cuda error|fallen off the bus"
)
# Those that a GPU says when it is gone, broken or in a state that nothing mends.
_GPU_BROKEN = re.compile(
    r"ECC|is lost|off the bus|launch failure|launch timed out|unknown error|illegal memory access"
    r"|EXECUTION_FAILED|unhandled cuda error|hardware"
)
_RECENT = 600.0  # seconds that an entry of the kernel's log may be older than a failure
_COMPILER = ("/torch/_dynamo/", "/torch/_functorch/", "/torch/_inductor/", "torch._dynamo.exc")


@contextmanager
def explained(
    config: Config, checkpoints: Path | None = None, pulse: Pulse | None = None
) -> Iterator[None]:
    """In the block, errors of libraries become ours where they mean something for the user.

    Args:
        checkpoints: where the newest one is looked for, to be named.
        pulse: where the process is, to be said where it lost the others.
    """
    try:
        yield
    except LockstepError:
        raise
    except Exception as error:
        known: LockstepError | None = out_of_memory(error, config, checkpoints)
        if isinstance(error, RuntimeError):  # a broken pipe may be a logger's
            known = known or lost(error, pulse, checkpoints) or unused(error) or parted(error)
        known = known or uncompiled(error, config) or gpu_failed(error, checkpoints)
        if known is None:
            raise
        raise known from error


def lost(
    error: BaseException, pulse: Pulse | None = None, checkpoints: Path | None = None
) -> LockstepError | None:
    """What an error says that means that another process is gone; None for other errors."""
    text, rank = str(error), launcher.rank()
    # DataLoader notices its workers' deaths in a signal handler, so wherever we are.
    if "DataLoader worker" in text:
        return HostError(
            f"a loader process of process {rank} died: {text}",
            "look for lack of memory (dmesg) or of /dev/shm, lower --data.workers, add --resume",
            one_rank=True,
        )
    # The store is the main process's.
    if isinstance(error, dist.DistNetworkError) or any(sign in text for sign in _GONE):
        where = pulse.place() if pulse else ""
        return LostPeers(
            f"process {rank} lost the others{f' {where}' * bool(where)}",
            f"read above which process ended, and how{going_on(checkpoints)}",
            one_rank=True,
        )
    return None


def unused(error: BaseException) -> LockstepError | None:
    """What DDP says of parameters without a gradient; None for other errors."""
    if "Expected to have finished reduction in the prior iteration" not in str(error):
        return None
    return UsageError(
        "some parameters had no gradient in a pass, and at fast DDP waits for all of them",
        "use --reproducibility deterministic or lockstep",
        one_rank=True,
    )


def parted(error: BaseException) -> LockstepError | None:
    """What torch says where a model reaches for weights of a block that is not at work, which are
    sharded then; None for other errors.
    """
    if "mixed torch.Tensor and DTensor" not in str(error):
        return None
    return UsageError(
        "the model uses a block's weights from outside of its forward, where they are sharded",
        "train it whole: leave ACCELERATE=fsdp out; --debug shows where",
    )


def uncompiled(error: BaseException, config: Config) -> LockstepError | None:
    """What an error says that came out of a compiled model; None for other errors.

    The examination has seen that the model works as it is.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # The innermost: what is not compiled passes through the compiler's files as well.
    files = (frames[-1].f_code.co_filename if frames else "", type(error).__module__)
    inside = any(part in file for file in files for part in _COMPILER)
    if not (inside and config.model.compile):
        return None
    said = (str(error).strip().splitlines() or [""])[0].split(" Hint: ")[0]
    if type(error).__name__ == "FailOnRecompileLimitHit":  # to import it takes seconds
        said = "it has more shapes inside than the compiler takes, and the rest would be computed"
        said += " otherwise"
    return UsageError(
        f"the model cannot be compiled, {type(error).__name__}: {said}",
        "leave out --model.compile; --debug shows where",
        one_rank=True,
    )


def gpu_failed(error: BaseException, checkpoints: Path | None = None) -> LockstepError | None:
    """What an error says that means that a GPU failed, or was misled; None for other errors.

    Memory is `out_of_memory`'s, which is asked first.
    """
    text = str(error)
    failed = _GPU_FAILED.search(text)
    if failed is None:
        return None
    # The line that says it: below stands advice that torch gives for every one. NCCL says more.
    cause = text[failed.start() :].splitlines()[0].strip()
    more = re.search(r"Cuda failure .*", text)
    cause += f", {more.group()}" if more and more.group() not in cause else ""
    who = f"process {launcher.rank()}: GPU {launcher.local_rank()}"
    if "device-side assert" in text:
        return UsageError(
            f"{who} was given an index that does not exist (device-side assert): a label, or one"
            " that the model makes",
            "run it with CUDA_LAUNCH_BLOCKING=1 and --debug to see where",
            one_rank=True,
        )
    if not _GPU_BROKEN.search(cause):
        return HostError(
            f"{who} refused: {cause}",
            "look for lack of its memory (`nvidia-smi`), and at `make doctor`; --debug shows where",
            one_rank=True,
        )
    logged = kernel.gpu_error(_RECENT)
    log = "" if logged else " and `sudo dmesg | grep -iE 'nvrm|xid'`"
    return HostError(
        f"{who} failed: {cause}" + (f"; the kernel's log has {logged}" if logged else ""),
        f"look at `nvidia-smi`{log}; leave that GPU out (GPUS=…), or reboot{going_on(checkpoints)}",
        one_rank=True,
    )
