"""What `tune` measures, in processes that may be killed for it: real steps of a real training.

    accelerate launch … -m train.trial TASK

TASK is a JSON file: `kind` (batch, workers, speed or lr), `config`, `notes`, and what the kind
needs. The first process adds a line to `notes` before each try and after it, so that whoever
outlives it knows what killed it. All processes decide alike: what fails on one has failed on all.
"""

import json
import math
import os
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from train import assemble, capacity, loop, outcome, parent, runtime
from train.bench import Bench, Full, Notes, free, parts_of, synchronize
from train.config import Config
from train.data import lane_batches
from train.errors import Lost, TrainError, translated
from train.experiment import parse
from train.health import exhausted
from train.interrupt import StopFlag
from train.search import Search

# Seconds and steps of a measurement, after steps that start workers and choose kernels.
_SECONDS, _STEPS, _WARMUP = 2.0, 8, 2


def run(task: dict[str, Any]) -> None:
    """Do what the task says.

    Raises:
        TrainError: as a training would; lack of memory is an answer where it is the question.
    """
    config = parse(task["config"], "the experiment")
    with runtime.start(config) as here, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = here.together(lambda: assemble.data(config, here, StopFlag()))
        notes = Notes(Path(task["notes"]), here.main)
        bench = Bench(config, data, here, folder, notes)
        notes.add(world=here.world, images=len(data.train), cuda=here.device.type == "cuda")
        kind = task["kind"]
        if kind == "batch":
            capacity.find(bench, Search(**task["search"]))
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


def _measure(bench: Bench) -> dict[str, float]:
    """Samples per second, and the shares of step time that wait for data and for others."""
    config, here = bench.config, bench.here
    parts = parts_of(bench, assemble.samples(config, bench.data))
    steps = 0
    batches = lane_batches(
        bench.data.train, config, here.lanes, here.device, first_step=0, total=parts.samples
    )
    with closing(batches):
        start = time.perf_counter()
        for step in range(parts.steps):
            loop.update(parts, batches, step, 0.0)
            if step + 1 == min(_WARMUP, parts.steps - 1):
                synchronize(here)
                parts.watch.read()
                start, steps = time.perf_counter(), 0
                continue
            steps += 1
            if here.any(steps >= _STEPS and time.perf_counter() - start > _SECONDS):
                break
        synchronize(here)
        seconds = time.perf_counter() - start
    spans = parts.watch.read()
    parts.reducer.close()
    free(here)
    return {
        "samples_per_second": steps * config.batch_size / seconds,
        "seconds_per_step": seconds / max(1, steps),
        "data_share": min(1.0, spans.get("data", 0.0) / seconds),
        "communication_share": min(1.0, spans.get("communication", 0.0) / seconds),
    }


def _range(bench: Bench, rates: list[float]) -> None:
    """Rising learning rates, a step each, until the loss has left for good."""
    config, here = bench.config, bench.here
    samples = config.batch_size * len(rates)
    parts = parts_of(bench, samples)
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
    except (RuntimeError, MemoryError, Full) as error:
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
