"""What `tune` measures, in processes that may be killed for it: real steps of a real training.

    accelerate launch … -m train.tuning.trial TASK

TASK is a JSON file: `kind` (probe, batch, workers, speed or lr), `config`, `rows`, and what the
kind needs. The first process adds a line to `rows` before each try and after it, so that whoever
outlives it knows what killed it. All processes decide alike: what fails on one has failed on all.
"""

import json
import math
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from host.errors import LockstepError
from train import assemble, loop
from train.config import Config
from train.experiment import parse
from train.lanes import runtime as runtimes
from train.process import outcome, parent
from train.process.failures import explained
from train.process.interrupt import StopFlag
from train.tuning import capacity
from train.tuning.bench import Bench, Report, free, known, parts_of, synchronize
from train.tuning.search import Search

# Seconds and steps of a measurement, after steps that start workers and choose kernels.
_SECONDS, _STEPS, _WARMUP = 2.0, 8, 2
_PATIENCE = 20.0  # seconds for a forecast


def run(task: dict[str, Any]) -> None:
    """Do what the task says.

    Raises:
        LockstepError: as a training would; lack of memory is an answer where it is the question.
    """
    config = parse(task["config"], "the experiment")
    config = config.model_copy(update={"augment": config.augment.grown})  # the dearest steps
    with runtimes.start(config) as runtime, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = assemble.data(config, runtime, StopFlag())
        report = Report(Path(task["rows"]), runtime.main)
        bench = Bench(config, data, runtime, folder, report)
        bench = replace(bench, traits=known(bench))
        report.add(world=runtime.world, images=len(data.train), cuda=runtime.device.type == "cuda")
        kind = task["kind"]
        if kind == "probe":
            _probe(bench)
        elif kind == "batch":
            capacity.find(bench, Search(**task["search"]))
        elif kind == "workers":
            for workers, prefetch in task["pairs"]:
                chosen = config.data.model_copy(update={"workers": workers, "prefetch": prefetch})
                own = config.model_copy(update={"data": chosen})
                figures = _measure(replace(bench, config=own))
                report.add(workers=workers, prefetch=prefetch, **figures)
        elif kind == "speed":
            report.add(**_measure(bench))
        else:
            _range(bench, task["rates"])


def _probe(bench: Bench) -> None:
    """What a forecast needs to know: time and memory of the experiment as it is."""
    begin = time.perf_counter()
    capacity.confine(bench.runtime)
    capacity.reset_peak(bench.runtime)
    before, _ = capacity.peak_memory(bench.runtime)
    figures = _measure(bench, most=_PATIENCE)
    memory, total = capacity.peak_memory(bench.runtime)
    about = {"memory_before": before, "memory": memory, "memory_total": total}
    bench.report.add(**figures, **about, measured_seconds=time.perf_counter() - begin)


def _measure(bench: Bench, most: float = math.inf) -> dict[str, float]:
    """Samples per second, and the shares of step time that wait for data and for others; after
    `most` seconds the step at hand is the last.
    """
    config, runtime = bench.config, bench.runtime
    parts = parts_of(bench, assemble.samples(config, bench.data))
    steps = 0
    batches = parts.batches(0)
    with closing(batches):
        start = time.perf_counter()
        until = start + most
        for step in range(parts.steps):
            loop.update(parts, batches, step, 0.0)
            if step + 1 == min(_WARMUP, parts.steps - 1):
                synchronize(runtime)
                parts.watch.read()
                start, steps = time.perf_counter(), 0
                continue
            steps += 1
            now = time.perf_counter()
            if runtime.any((steps >= _STEPS and now - start > _SECONDS) or now > until):
                break
        synchronize(runtime)
        seconds = time.perf_counter() - start
    spans = parts.watch.read()
    parts.reducer.close()
    free(runtime)
    return {
        "samples_per_second": steps * config.batch_size / seconds,
        "seconds_per_step": seconds / max(1, steps),
        "data_share": min(1.0, spans.get("data", 0.0) / seconds),
        "communication_share": min(1.0, spans.get("communication", 0.0) / seconds),
    }


def _range(bench: Bench, rates: list[float]) -> None:
    """Rising learning rates, a step each, until the loss has left for good."""
    parts = parts_of(bench, bench.config.batch_size * len(rates))
    batches = parts.batches(0)
    best = math.inf
    with closing(batches):
        for step, rate in enumerate(rates):
            report, _ = loop.update(parts, batches, step, rate)
            loss = float(report[0])
            bench.report.add(rate=rate, loss=loss if math.isfinite(loss) else None)
            best = min(best, loss)
            # The same on every process: the loss is.
            if not math.isfinite(loss) or (step > 10 and loss > 4 * best):
                break


def main() -> int:
    """Run the task in argv; errors reach `tune` as they reach the launcher of a training."""
    parent.end_with_launcher()
    try:
        with explained(Config()):
            run(json.loads(Path(sys.argv[1]).read_text()))
    except LockstepError as error:
        outcome.ended(error)
        return error.code
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:300]
        outcome.ended(LockstepError(said, "see its log"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
