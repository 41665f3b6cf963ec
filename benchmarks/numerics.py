"""What portable numerics cost beside native ones: steps of five experiments, in turns.

    python benchmarks/numerics.py [--rounds 11] [--only NAME …]

A process holds the libraries to one kind of numerics from its start, so two take turns of a second,
one thread each: whatever else the machine does meets both alike. Prints the median of the rounds'
ratios and their middle half.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests/portable"),
    str(ROOT / "benchmarks"),
]

from train.numerics import variables

KINDS = ("native", "portable")
ENDLESS = ("--epochs", "1e6", "--max_steps", "1000000000")


class Turn:
    """A process that trains when it is told to."""

    def __init__(self, words: str, kind: str) -> None:
        bare = {name: value for name, value in os.environ.items() if name not in variables.HELD}
        held = variables.HELD if kind == "portable" else {}
        environ = {**bare, **variables.STARTED, **held, "CUDA_VISIBLE_DEVICES": "-1"}
        command = [sys.executable, __file__, "--turn", f"{words} --numerics {kind}"]
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.seconds()

    def seconds(self) -> float:
        """Of a step, in a turn of about a second."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        sys.exit("a turn ended too early")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def turn(words: str) -> None:
    """Train whenever a line comes."""
    from step import Ours, per_step
    from trainer import Transformer

    from train import cli
    from train.data import load
    from train.lanes import runtime as runtimes
    from train.learn import models
    from train.verbs import Launched

    models.OURS["transformer"] = Transformer
    command = cli.parse(["fit", *words.split(), *ENDLESS])
    config = cast(Launched, command.verb).experiment(command.options, command.knobs)
    with runtimes.start(config) as runtime, tempfile.TemporaryDirectory() as folder:
        ours = Ours(config, runtime, load(config.data), Path(folder))
        steps = max(1, round(1 / per_step(ours, 3, runtime.device)))
        for _ in sys.stdin:
            print("seconds", per_step(ours, steps, runtime.device), flush=True)
        ours.close()


def main() -> None:
    """Take turns, and print a row for each experiment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        turn(options.turn)
        return
    from experiments import EXPERIMENTS, weights
    from step import ratios

    with tempfile.TemporaryDirectory() as name:
        file = weights(Path(name))
        for experiment, words in EXPERIMENTS.items():
            if options.only and experiment not in options.only:
                continue
            said = words.replace("WEIGHTS", str(file))
            turns = {kind: Turn(said, kind) for kind in KINDS}
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(options.rounds):
                for kind in KINDS[:: 1 if number % 2 else -1]:
                    times[kind].append(turns[kind].seconds())
            for one in turns.values():
                one.close()
            low, middle, high = ratios(times["portable"], times["native"])
            each = ", ".join(f"{k} {1e3 * statistics.median(times[k]):.1f} ms" for k in KINDS)
            print(f"{experiment}: {middle:.2f} ({low:.2f} to {high:.2f}); {each}", flush=True)


if __name__ == "__main__":
    main()
