"""What a trial of `tune` starts from, and how its processes agree on lack of memory."""

import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from train import assemble
from train.config import Config
from train.data import Augmenter, ImageData
from train.health import exhausted
from train.interrupt import StopFlag
from train.parts import Parts
from train.runtime import Runtime
from train.saver import Saver
from train.stopwatch import Stopwatch
from train.tripwire import Tripwire

T = TypeVar("T")


class Notes:
    """What was tried, written as it happens by the first process."""

    def __init__(self, path: Path, main: bool) -> None:
        self._path, self._main = path, main

    def add(self, **entry: Any) -> None:
        """One line."""
        if self._main:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


class Full(MemoryError):
    """There is not enough memory on one of the processes."""


@dataclass(frozen=True)
class Bench:
    """What every measurement starts from."""

    config: Config
    data: ImageData
    here: Runtime
    folder: Path
    notes: Notes
    proven: bool = False
    """Whether a step went well before."""


def parts_of(bench: Bench, samples: int) -> Parts:
    """The same parts as a training has, but for what writes."""
    config, data, here = bench.config, bench.data, bench.here

    def learner() -> tuple[nn.Module, Optimizer]:
        return assemble.learner(config, data, None, here)[:2]

    unwrapped, optimizer = agreed(bench, learner)
    model, reducer = assemble.wrap(unwrapped, config, here)
    wrapped = here.accelerator.prepare_optimizer(optimizer, device_placement=False)
    tripwire = None
    if here.world > 1:
        whole = config.reproducibility == "lockstep"
        watch = config.tripwire > 0
        tripwire = Tripwire(unwrapped, optimizer, here, buffers=whole, watch=watch)
    saver = Saver(bench.folder, 1, unwrapped, optimizer, None, {})
    augmenter = Augmenter(config.augment, data.mean, data.std, here.device)
    return Parts(
        config, here, data, augmenter, model, unwrapped, wrapped, reducer, saver, tripwire, None,
        StopFlag(), samples, Stopwatch(here.device, running=here.main), None,
    )  # fmt: skip


def agreed(bench: Bench, work: Callable[[], T]) -> T:
    """Do `work`, which waits for no other process.

    Raises:
        Full: on all processes, where memory lacks on one.
    """
    value, failed = None, False
    try:
        value = work()
    except (RuntimeError, MemoryError) as error:
        if not lacks(bench, error):
            raise
        failed = True
    if bench.here.any(failed):
        raise Full
    return cast(T, value)


def lacks(bench: Bench, error: Exception) -> bool:
    """Whether an error means lack of memory."""
    # oneDNN says no more than this; where smaller batches went well, nothing else is the reason.
    vague = bench.proven and "could not create a primitive" in str(error)
    return vague or exhausted(error, bench.here.rank, bench.config, None) is not None


def free(here: Runtime) -> None:
    """Give back what a try took."""
    here.accelerator.free_memory()
    gc.collect()
    if here.device.type == "cuda":
        torch.cuda.empty_cache()


def synchronize(here: Runtime) -> None:
    """Wait for the device."""
    if here.device.type == "cuda":
        torch.cuda.synchronize(here.device)
