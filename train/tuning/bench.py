"""What a trial of `tune` starts from, and how its processes agree on lack of memory."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from train import assemble, learner
from train.config import Config
from train.data import ImageData
from train.lanes.runtime import Runtime
from train.lanes.traits import USUAL, Traits
from train.learn.average import Average
from train.parts import Parts
from train.process import memory
from train.process.exhausted import out_of_memory
from train.process.interrupt import StopFlag
from train.record.saver import Saver

T = TypeVar("T")


class Report:
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
    runtime: Runtime
    folder: Path
    report: Report
    traits: Traits = USUAL
    proven: bool = False
    """Whether a step went well before."""


def parts_of(bench: Bench, samples: int) -> Parts:
    """The same parts as a training has, but for what writes."""
    config, data, runtime = bench.config, bench.data, bench.runtime
    model, optimizer = agreed(bench, lambda: learner.new(config, data, runtime))
    learner.as_trained(model, config, bench.traits)
    saver = Saver(bench.folder, 1, model, assemble.facts(config, data, runtime))
    return assemble.parts(
        config,
        runtime,
        data,
        model=model,
        optimizer=optimizer,
        saver=saver,
        traits=bench.traits,
        average=Average(model, config.optim.ema) if config.optim.ema else None,
        count=samples,
        stop=StopFlag(),
    )


def known(bench: Bench) -> Traits:
    """What the model does that others do not; nothing is known where there is no room to look."""
    config, data, runtime = bench.config, bench.data, bench.runtime

    def look() -> Traits:
        return learner.traits(config, data, runtime, None)

    try:
        return runtime.from_main(agreed(bench, look))
    except Full:
        return USUAL
    finally:
        free(runtime)


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
    if bench.runtime.any(failed):
        raise Full
    return cast(T, value)


def lacks(bench: Bench, error: Exception) -> bool:
    """Whether an error means lack of memory."""
    # oneDNN says no more than this; where smaller batches went well, nothing else is the reason.
    vague = bench.proven and "could not create a primitive" in str(error)
    return vague or out_of_memory(error, bench.config) is not None


def free(runtime: Runtime) -> None:
    """Give back what a try took."""
    runtime.accelerator.free_memory()
    torch.compiler.reset()  # each size is a shape of its own to it, and it takes eight
    memory.give_back(runtime.device)


def synchronize(runtime: Runtime) -> None:
    """Wait for the device."""
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)
