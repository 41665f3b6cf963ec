"""What an error of a library means for the user: a process is gone, or memory is."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from host import launcher
from host.errors import HostError, LockstepError, LostPeers, OutOfMemory
from train.config import Config

# How gloo and NCCL say that a process is gone.
_GONE = ("closed by peer", "Connection reset", "Broken pipe")
# How CUDA, its libraries, torch's CPU allocator, C++ and oneDNN say that memory lacks.
_GPU_FULL = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
_CPU_FULL = ("can't allocate memory", "std::bad_alloc", "could not create a memory object")


@contextmanager
def explained(config: Config, checkpoints: Path | None = None) -> Iterator[None]:
    """In the block, errors of libraries become ours where they mean something for the user.

    Args:
        checkpoints: where the newest one is looked for, to be named.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = out_of_memory(error, config, checkpoints) or lost(error)
        if known is None:
            raise
        raise known from error


def lost(error: BaseException) -> LockstepError | None:
    """What an error says that means that another process is gone; None for other errors."""
    text, rank = str(error), launcher.rank()
    # DataLoader notices its workers' deaths in a signal handler, so wherever we are.
    if "DataLoader worker" in text:
        return HostError(
            f"a loader process of process {rank} died: {text}",
            "look for lack of memory (dmesg) or of /dev/shm, lower --data.workers, add --resume",
            one_rank=True,
        )
    if any(sign in text for sign in _GONE):
        return LostPeers(f"process {rank} lost the others", "see what they say", one_rank=True)
    return None


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
    found = sorted(checkpoints.glob("step-*")) if checkpoints else []
    resume = f"; {found[-1]} is whole: add --resume" if found else ""
    return OutOfMemory(
        f"process {launcher.rank()} ran out of {_gpu_memory() if gpu else 'memory'}{wanted}",
        f"{more}; `make tune` finds what fits{resume}",
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
