"""What the same bits cost: step time of `fast`, `deterministic` and `lockstep`, side by side.

    make bench              (on two CPU cores, four minutes)

On one process and on two, all three levels are built in the same processes and take turns, a few
steps each, so that whatever else the machine does meets them alike. Each turn is compared with
the `deterministic` one beside it; medians over the rounds, and the quartiles of the ratio.

The same batch, cut into the same micro-batches, throughout. `lockstep` computes with one thread a
process; the other levels share the CPUs, and are therefore shown with one thread as well. The
share in reduction is what a step takes beyond the same passes without any sum over processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch
import torch.distributed as dist
from accelerate.utils import DistributedDataParallelKwargs

from host import limits
from train import loop
from train.config import Config
from train.data import ImageData, load
from train.lanes import runtime as runtimes
from train.lanes.allreduce import AllReduce
from train.lanes.runtime import Runtime
from train.lanes.settings import pin
from train.tuning import bench

# Name: model and its knobs, and steps in a turn.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "convnet, 0.07 M parameters": ({"name": "convnet"}, 20),
    "resnet18, 11 M parameters": ({"name": "resnet18", "stem": "small"}, 2),
}
LEVELS = ("fast", "deterministic", "lockstep")


class Turn:
    """One level on this process, ready to do steps."""

    def __init__(
        self, level: str, threads: int, model: dict[str, Any], runtime: Runtime, data: ImageData
    ) -> None:
        self.config = Config(
            reproducibility=level, epochs=1000, model=model, augment={"pad": 1},
            optim={"lr": 0.01, "schedule": "constant"}, data={"source": "digits", "holdout": 0.201},
        )  # fmt: skip
        self.name, self.threads = level, threads
        # How DDP groups gradients is the level's; the process was started for another one.
        runtime.accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=level == "deterministic"
        )
        nowhere = Path("/nonexistent")
        start = bench.Bench(self.config, data, runtime, nowhere, bench.Report(nowhere, False))
        self.parts = bench.parts_of(start, 1000 * len(data.train))
        self.batches = self.parts.batches(0)
        self.step = 0

    def take(self, steps: int) -> float:
        """Seconds a step."""
        pin(self.config)
        torch.set_num_threads(self.threads)
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            report, _ = loop.update(self.parts, self.batches, self.step, self.config.optim.lr)
            self.step += 1
        report.tolist()  # waits for a GPU
        return (time.perf_counter() - start) / steps


def alone(turn: Turn) -> None:
    """Leave out every sum over processes: what remains is the passes and the update."""
    turn.name = "no sum"
    bare = turn.parts.unwrapped
    object.__setattr__(turn.parts, "model", bare)
    object.__setattr__(turn.parts, "reducer", AllReduce(bare, 1))
    object.__setattr__(turn.parts, "tripwire", None)


def work(rounds: int) -> None:
    """Measure on this process, with its peers; the first one prints the rows."""
    with runtimes.start(Config(data={"source": "digits", "holdout": 0.201})) as runtime:
        data = load(Config(data={"source": "digits", "holdout": 0.201}).data)
        share = max(1, limits.cpus() // runtime.world)
        for title, (model, steps) in MODELS.items():
            turns = [Turn(level, 1, model, runtime, data) for level in LEVELS]
            if share > 1:
                turns += [Turn(level, share, model, runtime, data) for level in LEVELS[:2]]
            passes = Turn("fast", 1, model, runtime, data)
            alone(passes)
            times: list[list[float]] = []
            for number in range(rounds + 1):
                row = [turn.take(steps) for turn in (*turns, passes)]
                if number:  # the first round warms up
                    times.append(row)
            base = [row[1] for row in times]  # deterministic, one thread
            bare = statistics.median(row[-1] for row in times)
            for place, turn in enumerate(turns):
                mine = [row[place] for row in times]
                ratios = sorted(m / b for m, b in zip(mine, base, strict=True))
                low, middle, high = statistics.quantiles(ratios, n=4)
                summed = max(0.0, 1 - bare / statistics.median(mine)) if turn.threads == 1 else None
                if runtime.main:
                    cell = "–" if summed is None else f"{100 * summed:.0f} %"
                    print(
                        f"| {title} | {runtime.world} | {turn.name} | {turn.threads} |"
                        f" {1000 * statistics.median(mine):.1f} | {middle:.2f}"
                        f" ({low:.2f}–{high:.2f}) | {cell} |",
                        flush=True,
                    )
            for turn in (*turns, passes):
                turn.batches.close()


def main() -> None:
    """Print the table, or be one of the processes it is measured on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.rounds)
        return
    print("| model | processes | level | threads | ms a step | × deterministic | in reduction |")
    print("|---" * 7 + "|", flush=True)
    for world in (1, 2):
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += ["--nproc_per_node", str(world), __file__, "--worker"]
        subprocess.run(
            [*words, "--rounds", str(options.rounds)], check=True, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        )  # fmt: skip


if __name__ == "__main__":
    main()
