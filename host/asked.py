"""What GPUS and CPUS ask for, before it is known what there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

from host import visible
from host.errors import HostError, UsageError
from host.machine import Machine

MOST = "most"
"""GPUS where `free` chose them: as many of those that CUDA sees as can share the lanes."""


@dataclass(frozen=True)
class Asked:
    """What GPUS and CPUS ask for; None: whatever there is."""

    device: str | None
    count: int | None
    words: str


def ask(environ: Mapping[str, str], there: int) -> Asked:
    """What the variables ask for on a machine where CUDA sees `there` GPUs.

    Raises:
        UsageError: one has no sense, or contradicts the other.
    """
    gpus, cpus = environ.get("GPUS", ""), environ.get("CPUS", "")
    if gpus and cpus:
        raise UsageError("GPUS and CPUS are both set", "set one of them")
    if cpus:
        return Asked("cpu", _count("CPUS", cpus), f"CPUS={cpus}")
    if gpus == MOST:
        return Asked("cuda", None, "GPUS=free")
    if gpus == "all":
        # None there is no answer to all of them.
        return Asked("cuda", max(1, there), "GPUS=all")
    if gpus:
        count = _count("GPUS", gpus)
        return Asked("cuda" if count else "cpu", count or None, f"GPUS={gpus}")
    return Asked(None, None, "")


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or (name == "CPUS" and int(text) == 0):
        wanted = "a number from 1" if name == "CPUS" else "a number or all"
        raise UsageError(f"{name}={text} is no number of processes", f"give {wanted}")
    return int(text)


def check_count(environ: Mapping[str, str]) -> None:
    """See that there are as many GPUs as GPUS= says, where it is a number.

    Raises:
        HostError: there are not.
    """
    gpus = environ.get("GPUS", "")
    there = len(visible.seen(Machine(environ=environ))) if gpus.isdecimal() else 0
    if gpus.isdecimal() and int(gpus) > there:
        raise too_few(f"GPUS={gpus}", int(gpus), there)


def is_choice(gpus: str) -> bool:
    """Whether GPUS is a list (1,3) or `free`: `host.selection` makes names of it."""
    return re.fullmatch(r"\d+(,\d+)+,?|\d+,|free(:[1-9]\d*)?", gpus) is not None


def too_few(words: str, wanted: int, there: int, cpus: int = 1) -> HostError:
    """More GPUs are asked for than CUDA sees; `cpus` processes would do without any."""
    look = "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    count = f" asks for {wanted} GPU{'s' * (wanted != 1)}" if "ACCELERATE" in words else ""
    return HostError(
        f"{words}{count}, and {there or 'no'} GPU{'s' * (there != 1)} can be seen here",
        f"use {f'GPUS={there}' if there else f'CPUS={cpus}'}, or {look}",
    )
