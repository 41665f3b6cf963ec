"""What an error of a library means for the user: a process is gone, or memory is."""

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist

from host import kernel, launcher
from host.errors import HostError, LockstepError, LostPeers, OutOfMemory, UsageError
from train.config import Config
from train.lanes.pulse import Pulse
from train.learn import optim

# How gloo and NCCL say that a process is gone.
_GONE = ("closed by peer", "Connection reset", "Broken pipe", "Timed out waiting")
# How CUDA, its libraries, torch's CPU allocator, C++ and oneDNN say that memory lacks.
_GPU_FULL = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
_CPU_FULL = ("can't allocate memory", "std::bad_alloc", "could not create a memory object")
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
_AMOUNT = r"([\d.]+) ((?:[KMGT]i)?B|bytes)"
_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"
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
            f"read above which process ended, and how{_resume(checkpoints)}",
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


def out_of_memory(
    error: BaseException, config: Config, checkpoints: Path | None = None
) -> OutOfMemory | None:
    """What to say of an error that means lack of memory; None for other errors."""
    text = str(error)
    gpu = isinstance(error, torch.cuda.OutOfMemoryError) or any(sign in text for sign in _GPU_FULL)
    if not (gpu or isinstance(error, MemoryError) or any(sign in text for sign in _CPU_FULL)):
        return None
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", text)
    wanted = f"; it asked for {asked.group(1)}" if asked else ""
    more = f"--lanes {2 * config.lanes} (other bits), PRECISION=bf16, or a smaller --batch_size"
    if not (config.model.compile or config.model.activation_checkpointing):
        more = f"--model.activation_checkpointing true (the same bits, slower), {more}"
    if gpu and optim.kept(config.optim) and not config.optim.offload:
        more += ", or --optim.offload true (the same bits, slower)"
    if config.checkpoint.background and not gpu:
        more += ", or --checkpoint.background false"
    pieces = _in_pieces(text)
    if pieces:
        wanted += f", and {pieces} that torch keeps unused lie in pieces that are too small"
        more = f"`echo {_EXPANDABLE} >> .env` joins the pieces; or {more}"
    _told_in_full(checkpoints)
    return OutOfMemory(
        f"process {launcher.rank()} ran out of {_gpu_memory() if gpu else 'memory'}{wanted}",
        f"{more}; `make tune` finds what fits{_resume(checkpoints)}",
        one_rank=True,
    )


def _in_pieces(text: str) -> str | None:
    """How much memory torch holds unused, where it and what is free would have been enough.

    Torch has given whole blocks back before it says so: what is left lies between tensors.
    """
    asked, free, kept = (
        re.search(sign, text)
        for sign in (
            rf"[Tt]ried to allocate {_AMOUNT}",
            rf"of which {_AMOUNT} is free",
            rf"{_AMOUNT} is reserved by PyTorch but unallocated",
        )
    )
    if not (asked and free and kept) or "expandable_segments" in _allocator():
        return None
    sizes = [float(found.group(1)) * _UNITS[found.group(2)] for found in (asked, free, kept)]
    enough = sizes[1] < sizes[0] <= sizes[1] + sizes[2]
    return f"{kept.group(1)} {kept.group(2)}" if enough else None


def _allocator() -> str:
    """What torch's allocator is told, under its old name and its new one."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return " ".join(os.environ.get(name, "") for name in names)


def _told_in_full(checkpoints: Path | None) -> None:
    """Leave what torch's allocator knows in the run's folder: which sizes it holds."""
    if checkpoints is not None and torch.cuda.is_available():
        with suppress(OSError, RuntimeError):
            said = checkpoints.parent / f"memory-{launcher.rank()}.txt"
            said.write_text(torch.cuda.memory_summary())


def _resume(checkpoints: Path | None) -> str:
    """How to go on, where there is a checkpoint."""
    last = checkpoints / "latest" if checkpoints else None
    whole = last.parent / last.readlink() if last and last.is_symlink() else None
    return f"; {whole} is whole: add --resume" if whole else ""


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
        f"look at `nvidia-smi`{log}; leave that GPU out (GPUS=…), or reboot{_resume(checkpoints)}",
        one_rank=True,
    )


def _gpu_memory() -> str:
    """The state of this process's GPU's memory, for people."""
    if not torch.cuda.is_available():
        return "memory"
    free, total = torch.cuda.mem_get_info()
    taken, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    whole, tensors, kept, left = (f"{n / 2**30:.1f}" for n in (total, taken, held - taken, free))
    return (
        f"GPU memory: {tensors} of {whole} GiB hold tensors, {kept} are kept by torch and unused,"
        f" {left} are free"
    )
