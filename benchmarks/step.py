"""What a step costs beside a hand-written loop with the same micro-batches, in turns.

    python benchmarks/step.py [--config configs/digits.yaml] [--rounds 20]

The hand-written loop is what a careful person writes for one process: images in memory, a shuffle
each epoch, a random crop, normalised, the batch cut into the same micro-batches whose gradients add
up, the same model and optimizer. It promises nothing of order, resume or processes. Both take turns
of a second, so that whatever else the machine does meets them alike; prints the median of the
rounds' ratios and their middle half.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor
from torch.nn import functional

from train import loop
from train.config import Config
from train.data import ImageData, load
from train.experiment import load as experiment
from train.journal import Journal
from train.lanes import runtime as runtimes
from train.lanes.runtime import Runtime
from train.learn import models, optim
from train.record.resume import State
from train.tuning import bench

FOREVER = 10**9


class Ours:
    """The trainer's own step: what `loop.train` does between two evaluations."""

    def __init__(self, config: Config, runtime: Runtime, data: ImageData, folder: Path) -> None:
        start = bench.Bench(config, data, runtime, folder, bench.Report(folder / "rows", False))
        self.parts = bench.parts_of(start, FOREVER)
        self.journal = Journal(self.parts, State())
        self.batches = self.parts.batches(0)
        self.every, self.lr = config.log.every, config.optim.lr

    def step(self) -> None:
        state = self.journal.state
        self.parts.runtime.any(bool(self.parts.stop))
        report, norm = loop.update(self.parts, self.batches, state.step, self.lr)
        state.step += 1
        self.journal.keep(report, norm)
        if state.step % self.every == 0:
            self.journal.settle()

    def close(self) -> None:
        self.batches.close()


class HandWritten:
    """The same work, written down for one process and one machine."""

    def __init__(self, config: Config, runtime: Runtime, data: ImageData) -> None:
        self.config, self.device = config, runtime.device
        self.images = torch.cat([data.train.images(torch.arange(len(data.train)))]).to(self.device)
        self.labels = data.train.labels.to(self.device)
        self.mean = torch.tensor(data.mean, device=self.device)[:, None, None] * 255
        self.std = torch.tensor(data.std, device=self.device)[:, None, None] * 255
        torch.manual_seed(config.seed)
        self.model = models.build(config.model, len(data.classes), data.train.shape)
        self.model = self.model.to(self.device)
        self.optimizer = optim.build(config, self.model)
        self.half = runtime.accelerator.mixed_precision
        self.order: Iterator[Tensor] = iter(())

    def micro_batches(self) -> Iterator[Tensor]:
        """Numbers of the samples of each micro-batch."""
        while True:
            yield from torch.randperm(len(self.labels), device=self.device).split(
                self.config.micro_batch
            )

    def batch(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        images, pad = self.images[numbers], self.config.augment.pad
        if pad:
            _, _, height, width = images.shape
            windows = functional.pad(images, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
            top, left = torch.randint(2 * pad + 1, (2, len(numbers)), device=self.device)
            images = windows[torch.arange(len(numbers), device=self.device), :, top, left]
        images = (images.float() - self.mean) / self.std
        if self.config.model.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, self.labels[numbers]

    def step(self) -> None:
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        kind: Any = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.half)
        for _ in range(self.config.lanes):
            numbers = next(self.order, None)
            if numbers is None:
                self.order = self.micro_batches()
                numbers = next(self.order)
            images, labels = self.batch(numbers)
            with torch.autocast(self.device.type, dtype=kind, enabled=kind is not None):
                logits = self.model(images)
            smoothing = self.config.optim.label_smoothing
            loss = functional.cross_entropy(
                logits.float(), labels, reduction="sum", label_smoothing=smoothing
            )
            (loss / self.config.batch_size).backward()
            total += loss.detach()
        self.optimizer.step()

    def close(self) -> None:
        pass


def per_step(turn: Ours | HandWritten, steps: int, device: torch.device) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    for _ in range(steps):
        turn.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / steps


def compared(
    turns: dict[str, Ours | HandWritten], device: torch.device, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds a step of each, in turns; the first round warms up."""
    steps = dict.fromkeys(turns, 3)
    for name, turn in turns.items():
        per_step(turn, 3, device)
        steps[name] = max(2, round(seconds / per_step(turn, 3, device)))
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(turns)[:: 1 if number % 2 else -1]:
            times[name].append(per_step(turns[name], steps[name], device))
    return times


def ratios(times: list[float], base: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the rounds' ratios."""
    low, middle, high = statistics.quantiles(
        [one / other for one, other in zip(times, base, strict=True)], n=4
    )
    return low, middle, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs/digits.yaml")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    options = parser.parse_args()
    config = experiment(options.config, {"numerics": "native", "epochs": 1e6})
    with runtimes.start(config) as runtime, tempfile.TemporaryDirectory() as folder:
        data = load(config.data)
        ours = Ours(config, runtime, data, Path(folder))
        turns = {"ours": ours, "hand-written": HandWritten(config, runtime, data)}
        times = compared(turns, runtime.device, options.rounds, options.seconds)
        ours.close()
    for name, row in times.items():
        print(f"{name}: {1e3 * statistics.median(row):.2f} ms a step")
    low, middle, high = ratios(times["ours"], times["hand-written"])
    print(f"ours / hand-written: {middle:.3f} (middle half {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
