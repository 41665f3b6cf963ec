"""What `tune` measures, in processes that may be killed for it: real steps of a real training.

    accelerate launch … -m train.trial TASK

TASK is a JSON file: `kind` (batch, workers, speed or lr), `config`, `notes`, and what the kind
needs. The first process adds a line to `notes` before each try and after it, so that whoever
outlives it knows what killed it. All processes decide alike: what fails on one has failed on all.
"""

import gc
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from train import assemble, limits, loop, outcome, parent, runtime
from train.config import Config
from train.data import Augmenter, Batch, ImageData, lane_batches
from train.errors import Lost, TrainError, translated
from train.experiment import parse
from train.health import exhausted
from train.interrupt import StopFlag
from train.parts import Parts
from train.reduce import AllReduce, LaneTree, gradient_copies
from train.runtime import Runtime
from train.saver import Saver
from train.search import Search
from train.stopwatch import Stopwatch
from train.tripwire import Tripwire

T = TypeVar("T")

ROOM = 0.9
"""Share of the memory that a try may take: evaluation, saves and fragments need the rest."""
# Seconds and steps of a measurement, after steps that start workers and choose kernels.
_SECONDS, _STEPS, _WARMUP = 3.0, 8, 2
_SHORT = 0.1


class _Notes:
    """What was tried, written as it happens by the first process."""

    def __init__(self, path: Path, main: bool) -> None:
        self._path, self._main = path, main

    def add(self, **entry: Any) -> None:
        if self._main:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


class _Full(MemoryError):
    """There is not enough memory on one of the processes."""


@dataclass(frozen=True)
class _Bench:
    """What every measurement starts from."""

    config: Config
    data: ImageData
    here: Runtime
    folder: Path
    notes: _Notes
    proven: bool = False
    """Whether a step went well before."""


def run(task: dict[str, Any]) -> None:
    """Do what the task says.

    Raises:
        TrainError: as a training would; lack of memory is an answer where it is the question.
    """
    config = parse(task["config"], "the experiment")
    with runtime.start(config) as here, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = here.together(lambda: assemble.data(config, here, StopFlag()))
        notes = _Notes(Path(task["notes"]), here.main)
        bench = _Bench(config, data, here, folder, notes)
        notes.add(world=here.world, images=len(data.train), cuda=here.device.type == "cuda")
        kind = task["kind"]
        if kind == "batch":
            _batch(bench, Search(**task["search"]))
        elif kind == "workers":
            for workers, prefetch in task["pairs"]:
                chosen = config.data.model_copy(update={"workers": workers, "prefetch": prefetch})
                own = config.model_copy(update={"data": chosen})
                figures = _measure(replace(bench, config=own))
                notes.add(workers=workers, prefetch=prefetch, **figures)
        elif kind == "speed":
            notes.add(**_measure(bench))
        else:
            _range(bench, task["rates"])


def _parts(bench: _Bench, samples: int) -> Parts:
    """The same parts as a training has, but for what writes."""
    config, data, here = bench.config, bench.data, bench.here

    def learner() -> tuple[nn.Module, Optimizer]:
        return assemble.learner(config, data, None, here)[:2]

    unwrapped, optimizer = _agreed(bench, learner)
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


def _agreed(bench: _Bench, work: Callable[[], T]) -> T:
    """Do `work`, which waits for no other process.

    Raises:
        _Full: on all processes, where memory lacks on one.
    """
    value, failed = None, False
    try:
        value = work()
    except (RuntimeError, MemoryError) as error:
        if not _lacks(bench, error):
            raise
        failed = True
    if bench.here.any(failed):
        raise _Full
    return cast(T, value)


def _lacks(bench: _Bench, error: Exception) -> bool:
    """Whether an error means lack of memory."""
    # oneDNN says no more than this; where smaller batches went well, nothing else is the reason.
    vague = bench.proven and "could not create a primitive" in str(error)
    return vague or exhausted(error, bench.here.rank, bench.config, None) is not None


# The largest micro-batch.


def _batch(bench: _Bench, search: Search) -> None:
    here = bench.here
    # More is no batch of this data.
    search.most = min(search.most, max(1, len(bench.data.train) // here.world))
    _confine(here)
    while (size := search.next()) is not None:
        bench.notes.add(trying=size)
        _reset_peak(here)
        try:
            seconds = _steps(replace(bench, proven=search.low > 0), size)
            peak, total = _peak(here)
            # What a GPU may be filled with is held down already, by `_confine`.
            full = here.device.type != "cuda" and peak > ROOM * total
            if here.any(full):  # each process saw it at its own moment
                raise _Full
            search.fits(size)
            bench.notes.add(
                size=size, fits=True, samples_per_second=size * here.world / seconds,
                memory=peak, memory_total=total,
            )  # fmt: skip
        except _Full:
            search.fails(size)
            bench.notes.add(size=size, fits=False)
        _free(here)
    answers: list[int | None] = [search.low] * here.world
    if here.control is not None:
        dist.all_gather_object(answers, search.low, group=here.control)
    bench.notes.add(answers=answers)


def _confine(here: Runtime) -> None:
    """Leave room beside the tries."""
    if here.device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(ROOM, torch.cuda.current_device())
    elif limits.memory() is None:
        # Without a cgroup the kernel would kill whatever it likes: here the allocator says no.
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        most = psutil.Process().memory_info().data
        most += int(ROOM * psutil.virtual_memory().available / local)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _steps(bench: _Bench, size: int) -> float:
    """A few steps of one lane of `size` samples on each process; seconds of the last.

    The gradients that wait in the tree for other lanes are there as well: with them a step of all
    lanes takes no more.

    Raises:
        _Full: memory lacks.
    """
    here, world = bench.here, bench.here.world
    copies = gradient_copies(bench.config, world) - 1
    config = bench.config.model_copy(update={"lanes": world, "batch_size": size * world})
    each = replace(here, lanes=range(here.rank, here.rank + 1))
    own = replace(bench, config=config, here=each)
    parts = _parts(own, 8 * size * world)
    with closing(parts.reducer):
        return _timed(own, parts, size, copies)


def _timed(bench: _Bench, parts: Parts, size: int, copies: int) -> float:
    config, here = bench.config, bench.here
    world = here.world
    weights = list(parts.unwrapped.parameters())
    waiting = _agreed(
        bench, lambda: [[torch.zeros_like(p) for p in weights] for _ in range(copies)]
    )
    batches = _synthetic(size, bench.data, here)
    if world > 1:  # alone first: what fails inside an exchange would leave the others waiting
        lockstep = config.reproducibility == "lockstep"
        reducer = LaneTree(parts.unwrapped, 0, 1, 1) if lockstep else AllReduce(parts.unwrapped, 1)
        # Without DDP, where that is around it.
        model = getattr(parts.model, "module", parts.model)
        alone = replace(parts, model=model, reducer=reducer)
        _agreed(bench, lambda: loop.forward_backward(alone, batches, 0))
    seconds, more = 0.0, 1
    try:
        loop.update(parts, batches, 0, 0.0)
        _synchronize(here)
        for step in (1, 2):  # one step alone, and where that was too short for a clock, five
            start = time.perf_counter()
            for _ in range(more):
                loop.update(parts, batches, step, 0.0)
            _synchronize(here)
            seconds = (time.perf_counter() - start) / more
            more = 5
            if not here.any(seconds < _SHORT):
                break
    except (RuntimeError, MemoryError) as error:
        if not _lacks(bench, error):
            raise
        if world > 1:
            # The others wait for us inside an exchange: they end with us.
            outcome.ended(6, f"process {here.rank} ran out of memory → lower what it holds")
            os._exit(1)
        raise _Full from None
    del waiting
    return seconds


def _synthetic(size: int, data: ImageData, here: Runtime) -> Iterator[Batch]:
    """Batches of the data's shape; every class and key will do."""
    images = torch.zeros(size, *data.train.shape, dtype=torch.uint8, device=here.device)
    numbers = torch.arange(size, device=here.device)
    while True:
        yield Batch(images, numbers % len(data.classes), numbers)


def _reset_peak(here: Runtime) -> None:
    if here.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(here.device)
    else:
        with suppress(OSError):  # proc(5): forget the highest resident set
            Path("/proc/self/clear_refs").write_text("5")


def _peak(here: Runtime) -> tuple[float, float]:
    """The most memory that was taken since `_reset_peak`, and how much there is: bytes.

    On a GPU the worst process's; on the CPU that of all processes of the machine, with whatever
    else is in their cgroup.
    """
    if here.device.type == "cuda":
        total = torch.cuda.get_device_properties(here.device).total_memory
        mine = torch.tensor(float(torch.cuda.max_memory_reserved(here.device)))
        if here.control is not None:
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=here.control)
        return mine.item(), float(total)
    rows = Path("/proc/self/status").read_text().splitlines()
    sizes = {row.split(":")[0]: row.split()[1] for row in rows if row.startswith("Vm")}
    above = torch.tensor(float(int(sizes["VmHWM"]) - int(sizes["VmRSS"])) * 1024)
    if here.control is not None:
        dist.all_reduce(above, group=here.control)
    limit, used = limits.memory(), limits.memory_used()
    if limit is None or used is None:
        memory = psutil.virtual_memory()
        limit, used = memory.total, memory.total - memory.available
    return used + above.item(), float(limit)


def _free(here: Runtime) -> None:
    """Give back what a try took."""
    here.accelerator.free_memory()
    gc.collect()
    if here.device.type == "cuda":
        torch.cuda.empty_cache()


def _synchronize(here: Runtime) -> None:
    if here.device.type == "cuda":
        torch.cuda.synchronize(here.device)


# Steps with real data.


def _measure(bench: _Bench) -> dict[str, float]:
    """Samples per second, and the shares of step time that wait for data and for others."""
    config, here = bench.config, bench.here
    parts = _parts(bench, assemble.samples(config, bench.data))
    steps = 0
    batches = lane_batches(
        bench.data.train, config, here.lanes, here.device, first_step=0, total=parts.samples
    )
    with closing(batches):
        start = time.perf_counter()
        for step in range(parts.steps):
            loop.update(parts, batches, step, 0.0)
            if step + 1 == min(_WARMUP, parts.steps - 1):
                _synchronize(here)
                parts.watch.read()
                start, steps = time.perf_counter(), 0
                continue
            steps += 1
            if here.any(steps >= _STEPS and time.perf_counter() - start > _SECONDS):
                break
        _synchronize(here)
        seconds = time.perf_counter() - start
    spans = parts.watch.read()
    parts.reducer.close()
    _free(here)
    return {
        "samples_per_second": steps * config.batch_size / seconds,
        "seconds_per_step": seconds / max(1, steps),
        "data_share": min(1.0, spans.get("data", 0.0) / seconds),
        "communication_share": min(1.0, spans.get("communication", 0.0) / seconds),
    }


def _range(bench: _Bench, rates: list[float]) -> None:
    """Rising learning rates, a step each, until the loss has left for good."""
    config, here = bench.config, bench.here
    samples = config.batch_size * len(rates)
    parts = _parts(bench, samples)
    batches = lane_batches(
        bench.data.train, config, here.lanes, here.device, first_step=0, total=samples
    )
    best = math.inf
    with closing(batches):
        for step, rate in enumerate(rates):
            report, _ = loop.update(parts, batches, step, rate)
            loss = float(report[0])
            bench.notes.add(rate=rate, loss=loss if math.isfinite(loss) else None)
            best = min(best, loss)
            # The same on every process: the loss is.
            if not math.isfinite(loss) or (step > 10 and loss > 4 * best):
                break


def main() -> int:
    """Run the task in argv; errors reach `tune` as they reach the launcher of a training."""
    parent.end_with_launcher()
    rank = int(os.environ.get("RANK", "0"))
    try:
        run(json.loads(Path(sys.argv[1]).read_text()))
    except TrainError as error:
        return _ended(error)
    except (RuntimeError, MemoryError, _Full) as error:
        known = exhausted(error, rank, Config(), None) or translated(error, rank)
        if known is None:
            outcome.ended(1, (str(error).splitlines() or [type(error).__name__])[0][:300])
            raise
        return _ended(known)
    return 0


def _ended(error: TrainError) -> int:
    outcome.ended(error.code, str(error), bystander=isinstance(error, Lost))
    return error.code


if __name__ == "__main__":
    sys.exit(main())
