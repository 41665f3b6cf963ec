"""Lack of memory: how libraries say it, and what to do about it."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

import torch

from host import launcher
from host.errors import OutOfMemory
from train.config import Config
from train.learn import optim

# How CUDA, its libraries, torch's CPU allocator, C++ and oneDNN say that memory lacks.
_GPU_FULL = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
_CPU_FULL = ("can't allocate memory", "std::bad_alloc", "could not create a memory object")
_AMOUNT = r"([\d.]+) ((?:[KMGT]i)?B|bytes)"
_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


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
        f"{more}; `make tune` finds what fits{going_on(checkpoints)}",
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
    # Under WSL the driver does not map memory anew: https://github.com/pytorch/pytorch/issues/192330
    told = "expandable_segments" in _allocator() or "microsoft" in platform.release().lower()
    if not (asked and free and kept) or told:
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


def going_on(checkpoints: Path | None) -> str:
    """How to go on, to be added to what is advised; nothing where there is no checkpoint."""
    last = checkpoints / "latest" if checkpoints else None
    whole = last.parent / last.readlink() if last and last.is_symlink() else None
    return f"; {whole} is whole: add --resume" if whole else ""
