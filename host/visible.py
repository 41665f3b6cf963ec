"""Which of the driver's GPUs CUDA sees: what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import itertools
import re
from typing import Sequence

from host import nvidia
from host.machine import Machine

HIDDEN = ("", "-1", "-1,-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all on purpose; the last is Slurm's."""


def seen(machine: Machine) -> list[nvidia.Gpu]:
    """The GPUs that CUDA sees: those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    _, gpus = nvidia.ask(machine)
    return of(gpus, machine.environ.get("CUDA_VISIBLE_DEVICES"))


def of(gpus: Sequence[nvidia.Gpu], chosen: str | None) -> list[nvidia.Gpu]:
    """The GPUs that CUDA sees where CUDA_VISIBLE_DEVICES is `chosen` (None: not set).

    CUDA's rule, from the CUDA programming guide (environment variables) and, where that is silent,
    from how torch counts without starting CUDA (torch/cuda/__init__.py): a list of numbers, or of
    beginnings of UUIDs that fit one GPU each. It ends at the first entry that names none; what
    stands behind that is not seen. The first entry decides which of the two kinds it is, and one
    GPU named twice leaves none. Of MIG's instances, which the driver does not list, one is seen.
    """
    if chosen is None or not gpus:
        return list(gpus)
    if chosen.startswith("MIG-"):
        name = chosen.split(",")[0]
        return [nvidia.Gpu({"index": name, "uuid": name, "name": name})]
    named = _by_uuid(gpus, chosen) if chosen.startswith("GPU-") else _by_number(gpus, chosen)
    return named if len({gpu.uuid for gpu in named}) == len(named) else []


def _by_uuid(gpus: Sequence[nvidia.Gpu], chosen: str) -> list[nvidia.Gpu]:
    words = list(itertools.takewhile(lambda word: word.startswith("GPU-"), chosen.split(",")))
    if len(set(words)) < len(words):
        return []
    found = []
    for word in words:
        fits = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
        if len(fits) != 1:
            break
        found.append(fits[0])
    return found


def _by_number(gpus: Sequence[nvidia.Gpu], chosen: str) -> list[nvidia.Gpu]:
    # As strtoul reads them: "1st" is 1.
    read = (re.match(r"\+?(\d+)", word.strip()) for word in chosen.split(","))
    numbers = [int(one.group(1)) for one in itertools.takewhile(bool, read) if one]
    if len(set(numbers)) < len(numbers):
        return []
    return [gpus[n] for n in itertools.takewhile(lambda n: n < len(gpus), numbers)]
