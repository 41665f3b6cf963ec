"""The largest micro-batch that fits, by real steps that may not."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from host import launcher, limits
from host.errors import OutOfMemory
from train import loop
from train.data import Batch
from train.lanes.allreduce import AllReduce
from train.lanes.reducer import exchanged_copies, gradient_copies
from train.lanes.runtime import Runtime
from train.lanes.tree import LaneTree
from train.parts import Parts
from train.process import outcome
from train.tuning.bench import Bench, Full, agreed, free, lacks, parts_of, synchronize
from train.tuning.search import ROOM, Search

_SHORT = 0.1  # seconds that are too few for a clock


def find(bench: Bench, search: Search) -> None:
    """Try sizes until the answer is found, and note each."""
    runtime = bench.runtime
    # More is no batch of this data.
    search.most = min(search.most, max(1, len(bench.data.train) // runtime.world))
    confine(runtime)
    while (size := search.next()) is not None:
        bench.report.add(trying=size)
        reset_peak(runtime)
        try:
            seconds = _steps(replace(bench, proven=search.low > 0), size)
            peak, total = peak_memory(runtime)
            # What a GPU may be filled with is held down already, by `_confine`.
            full = runtime.device.type != "cuda" and peak > ROOM * total
            if runtime.any(full):  # each process saw it at its own moment
                raise Full
            search.fits(size)
            bench.report.add(
                size=size,
                fits=True,
                samples_per_second=size * runtime.world / seconds,
                memory=peak,
                memory_total=total,
            )
        except Full:
            search.fails(size)
            bench.report.add(size=size, fits=False)
        free(runtime)
    answers: list[int | None] = [search.low] * runtime.world
    if runtime.control is not None:
        dist.all_gather_object(answers, search.low, group=runtime.control)
    bench.report.add(answers=answers)


def confine(runtime: Runtime) -> None:
    """Leave room beside the tries."""
    if runtime.device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(ROOM, torch.cuda.current_device())
    elif limits.memory() is None:
        # Without a cgroup the kernel would kill whatever it likes: here the allocator says no.
        most = psutil.Process().memory_info().data
        most += int(ROOM * psutil.virtual_memory().available / launcher.local_world())
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _steps(bench: Bench, size: int) -> float:
    """A few steps of one lane of `size` samples on each process; seconds of the last.

    The gradients that wait in the tree for other lanes are there as well: with them a step of all
    lanes takes no more.

    Raises:
        Full: memory lacks.
    """
    runtime, world = bench.runtime, bench.runtime.world
    copies = gradient_copies(bench.config, world) - 1
    if world > 1:  # what is exchanged of one lane is one subtree
        copies += max(0, exchanged_copies(bench.config, world) - 2)
    config = bench.config.model_copy(update={"lanes": world, "batch_size": size * world})
    each = replace(runtime, shares=[range(n, n + 1) for n in range(world)])
    own = replace(bench, config=config, runtime=each)
    parts = parts_of(own, 8 * size * world)
    with closing(parts.reducer):
        return _timed(own, parts, size, copies)


def _timed(bench: Bench, parts: Parts, size: int, copies: int) -> float:
    config, runtime = bench.config, bench.runtime
    world = runtime.world
    weights = list(parts.unwrapped.parameters())
    waiting = agreed(bench, lambda: [[torch.zeros_like(p) for p in weights] for _ in range(copies)])
    batches = _synthetic(size, parts)
    if world > 1:  # alone first: what fails inside an exchange would leave the others waiting
        reducer = (
            LaneTree(parts.unwrapped, 0, [range(1)], parts.traits)
            if config.lockstep
            else AllReduce(parts.unwrapped, 1)
        )
        # Without DDP, where that is around it.
        model = getattr(parts.model, "module", parts.model)
        lonely = replace(runtime, control=None)  # which asks nobody whether to stop
        alone = replace(parts, model=model, reducer=reducer, runtime=lonely)
        agreed(bench, lambda: loop.forward_backward(alone, batches, 0))
    seconds, more = 0.0, 1
    try:
        loop.update(parts, batches, 0, 0.0)
        synchronize(runtime)
        for step in (1, 2):  # one step alone, and where that was too short for a clock, five
            start = time.perf_counter()
            for _ in range(more):
                loop.update(parts, batches, step, 0.0)
            synchronize(runtime)
            seconds = (time.perf_counter() - start) / more
            more = 5
            if not runtime.any(seconds < _SHORT):
                break
    except (RuntimeError, MemoryError) as error:
        if not lacks(bench, error):
            raise
        if world > 1:
            # The others wait for us inside an exchange: they end with us.
            problem = f"process {runtime.rank} ran out of memory"
            outcome.ended(OutOfMemory(problem, "lower what it holds"))
            os._exit(1)
        raise Full from None
    del waiting
    return seconds


def _synthetic(size: int, parts: Parts) -> Iterator[Batch]:
    """Batches of the data's shape, varied as in a training; every class and key will do."""
    data, device = parts.data, parts.runtime.device
    images = torch.zeros(size, *data.train.shape, dtype=torch.uint8, device=device)
    numbers = torch.arange(size, device=device)
    while True:
        varied = parts.augmenter(images, numbers)
        yield Batch(varied, numbers % len(data.classes), numbers)


def reset_peak(runtime: Runtime) -> None:
    """Begin to measure the most memory anew."""
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runtime.device)
    else:
        with suppress(OSError):  # proc(5): forget the highest resident set
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(runtime: Runtime) -> tuple[float, float]:
    """The most bytes that the training took since `reset_peak`, and how many there are for it.

    On a GPU the worst process's, of all that the GPU has. On the CPU those of all its processes on
    this machine, of what others leave them of the machine or of their cgroup.
    """
    if runtime.device.type == "cuda":
        total = torch.cuda.get_device_properties(runtime.device).total_memory
        mine = torch.tensor(float(torch.cuda.max_memory_reserved(runtime.device)))
        if runtime.control is not None:
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=runtime.control)
        return mine.item(), float(total)
    rows = Path("/proc/self/status").read_text().splitlines()
    sizes = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in rows if row.endswith(" kB")}
    # Libraries are mapped by all processes and held once: they count as the others'.
    own, above = float(sizes["RssAnon"]), float(sizes["VmHWM"] - sizes["VmRSS"])
    both = torch.tensor([own, above], dtype=torch.float64)
    if runtime.control is not None:
        dist.all_reduce(both, group=runtime.control)
    own, above = both.tolist()
    limit, used = limits.memory(), limits.memory_used()
    if limit is None or used is None:
        memory = psutil.virtual_memory()
        limit, used = memory.total, memory.total - memory.available
    return own + above, limit - max(0.0, used - own)
