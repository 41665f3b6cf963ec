"""What looking at the machine costs: the same training steps with live health and without, in turn.

    python benchmarks/health.py [--config configs/digits.yaml] [--rounds 30]

Prints the ratio of step times, as the median over rounds and the middle half of them. Without: no
thread that samples, and no clocks in the step.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from train import loop
from train.data import load
from train.experiment import load as experiment
from train.lanes import runtime as runtimes
from train.process.health import Health
from train.process.stopwatch import Stopwatch
from train.tuning import bench


class Still(Stopwatch):
    """A stopwatch that does not run."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        yield


def _direct(runtime: runtimes.Runtime, step: float, spans: int) -> float:
    """What a second's sample and a step's clocks take by themselves, as a share of step time."""
    watch, count = Stopwatch(runtime.device), 1000
    begun = time.perf_counter()
    for _ in range(count):
        with watch.span("data"):
            pass
    each = (time.perf_counter() - begun) / count
    with Health(runtime.device) as health:
        begun = time.perf_counter()
        for _ in range(100):
            health._sample()
        sample = (time.perf_counter() - begun) / 100
    print(f"a sample: {1e3 * sample:.3f} ms each second; a span: {1e6 * each:.2f} µs")
    return sample + spans * each / step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, default=Path("configs/digits.yaml"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each half of a round")
    options = parser.parse_args()
    config = experiment(options.config, {"numerics": "native", "epochs": 1e6})
    with runtimes.start(config) as runtime, tempfile.TemporaryDirectory() as folder:
        data = load(config.data)
        start = bench.Bench(
            config, data, runtime, Path(folder), bench.Report(Path(folder) / "n", False)
        )
        parts = bench.parts_of(start, 10**9)
        batches = parts.batches(0)
        step = 0

        def steps(seconds: float, watched: bool) -> float:
            nonlocal step
            own = parts if watched else replace(parts, watch=Still(runtime.device))
            with Health(runtime.device) if watched else nullcontext():
                begun, count = time.perf_counter(), 0
                while time.perf_counter() - begun < seconds:
                    loop.update(own, batches, step, 0.0)
                    step, count = step + 1, count + 1
                if runtime.device.type == "cuda":
                    torch.cuda.synchronize()
                return (time.perf_counter() - begun) / count

        steps(options.seconds, True)
        ratios, plain = [], []
        for number in range(options.rounds):
            order = (True, False) if number % 2 else (False, True)
            pair = {watched: steps(options.seconds, watched) for watched in order}
            ratios.append(pair[True] / pair[False])
            plain.append(pair[False])
        batches.close()
        share = _direct(runtime, statistics.median(plain), len(runtime.lanes) + 1)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"step without: {1e3 * statistics.median(plain):.2f} ms; with live health:")
    print(f"× {middle:.4f} (middle half of {options.rounds} rounds: {low:.4f} to {high:.4f})")
    print(f"its parts alone, one after another: {100 * share:.3f} % of step time")


if __name__ == "__main__":
    main()
