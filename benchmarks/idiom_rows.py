"""The rows of idioms.py's table, in the copy of the checkout that has the models."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault import harness
from gpu_parts import FAMILIES

from train.learn import idioms

SHORT = (
    "--data.source", "digits", "--batch_size", "32", "--lanes", "4", "--epochs", "0.2",
    "--checkpoint.every", "2", "--eval.every", "4", "--log.every", "1", "--optim.lr", "0.02",
)  # fmt: skip
FAMILY = (
    "--data.source", "digits", "--data.holdout", "0.01", "--batch_size", "8", "--lanes", "4",
    "--max_steps", "3", "--checkpoint.every", "1", "--eval.every", "2", "--log.every", "1",
    "--optim.lr", "0.001",
)  # fmt: skip
COLUMNS = ("2", "4", "killed, 1 → 2", "killed, 2 → 1", "evaluated", "reproduced")
# Passes over lanes until SIGKILL: in the middle of the fifth step, or of the second.
STRIKES = {SHORT: {1: 18, 2: 9}, FAMILY: {1: 6, 2: 3}}
KEPT = ("weights_sha256", "metrics", "best", "steps")


@dataclass
class Ended:
    """How a run ended: what came out, or the line it was refused with."""

    codes: list[int | None]
    said: str
    found: dict[str, Any] | None

    @property
    def refusal(self) -> str | None:
        """The one line, where it was refused as it should be."""
        lines = [line for line in self.said.splitlines() if line.startswith("error: ")]
        good = set(self.codes) == {2} and len(lines) == 1 and "Traceback" not in self.said
        return lines[0].removeprefix("error: ") if good else None


@dataclass
class Trainings:
    """All that is done with one model."""

    home: Path
    name: str

    @property
    def knobs(self) -> tuple[str, ...]:
        """What is trained."""
        return FAMILY if self.name in FAMILIES else SHORT

    def train(self, world: int, run: str, log: str, strike: int = 0) -> Ended:
        """Train on `world` processes; `strike`: SIGKILL all in the middle of that lane."""
        place = self.home / run
        words: list[Any] = [
            "fit",
            "--model.name",
            self.name,
            *self.knobs,
            "--run",
            place,
            "--resume",
        ]
        words += ["--data.size", FAMILIES[self.name]] if self.name in FAMILIES else []
        blow = {"at": "lane", "count": strike, "signal": signal.SIGKILL}
        strikes = dict.fromkeys(range(world), blow) if strike else None
        attempt = harness.start(self.home / log, world, words, strikes)
        codes = attempt.wait(600)
        attempt.end()
        result = place / "result.json"
        found = json.loads(result.read_text()) if result.exists() else {}
        if found.get("status") != "finished":
            return Ended(codes, attempt.output(), None)
        traced = {"trace": (place / "trace.csv").read_text()}
        return Ended(codes, attempt.output(), {name: found[name] for name in KEPT} | traced)

    def killed(self, before: int, after: int, first: Ended) -> str:
        """Killed on `before` processes, and gone on with on `after`."""
        run = f"killed-{before}"
        if self.train(before, run, f"log-{run}", STRIKES[self.knobs][before]).found is not None:
            return "NOT KILLED"
        return verdict(first, self.train(after, run, f"log-{run}-again"))

    def evaluated(self, first: Ended) -> str:
        """Measured again, on one process and on two."""
        assert first.found is not None
        for world in (1, 2):
            words = ["evaluate", "--run", self.home / "1"]
            attempt = harness.start(self.home / f"evaluate-{world}", world, words)
            codes = attempt.wait(600)
            attempt.end()
            lines = [line for line in attempt.output().splitlines() if line.startswith("{")]
            figures = json.loads(lines[0]) if len(lines) == 1 and set(codes) == {0} else {}
            if {n: v for n, v in figures.items() if n not in ("checkpoint", "step")} != first.found[
                "metrics"
            ]:
                return f"DIFFERENT on {world}: {attempt.output()[-300:]}"
        return "equal"

    def reproduced(self) -> str:
        """`reproduce` on two processes, as it is called."""
        words = [sys.executable, "-m", "train", "reproduce", str(self.home / "1"), "--cpus", "2"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return "equal" if done.returncode == 0 else (done.stderr.splitlines() or ["?"])[-1][:300]

    def row(self, *, again: bool) -> list[str]:
        """Its outcomes; what was written for them goes, for large models would fill the disk."""
        cells = self._row(again=again)
        shutil.rmtree(self.home)
        return cells

    def _row(self, *, again: bool) -> list[str]:
        first = self.train(1, "1", "log-1")
        if first.found is None and first.refusal is None:
            return [f"FAILED {first.codes}: {first.said[-400:]}"]
        others = [self.train(world, str(world), f"log-{world}") for world in (2, 4)]
        if first.found is None:
            good = all(other.refusal == first.refusal for other in others)
            return [
                f"refused: {first.refusal}"
                if good
                else f"UNLIKE: {[o.said[-200:] for o in others]}"
            ]
        cells = ["trained", *(verdict(first, other) for other in others)]
        cells += [self.killed(1, 2, first), self.killed(2, 1, first), self.evaluated(first)]
        return cells + ([self.reproduced()] if again else [])


def verdict(first: Ended, other: Ended) -> str:
    """Whether the other run ended in the same."""
    if other.found == first.found:
        return "equal"
    if other.found is None or first.found is None:
        return f"FAILED {other.codes}: {other.said[-300:]}"
    return f"DIFFERENT {[key for key in first.found if first.found[key] != other.found[key]]}"


def main() -> int:
    """Every row, two models at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--reproduce", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.only or list(idioms.ALL or FAMILIES)
    home = Path(tempfile.mkdtemp())
    lines, bad = [], 0
    with ThreadPoolExecutor(2) as pool:
        tried = [Trainings(home / name, name) for name in names]
        rows = pool.map(lambda one: one.row(again=options.reproduce), tried)
        for name, cells in zip(names, rows, strict=True):
            text = f"| {name} | {' | '.join(cell.replace('|', '¦') for cell in cells)} |"
            good = cells[0].startswith("refused: ") or set(cells[1:]) == {"equal"}
            bad += not good
            lines.append(" ".join(text.split()))
            print("ok " if good else "BAD", lines[-1], flush=True)
    shutil.rmtree(home)
    print(f"{len(names)} models, {bad} of them neither equal nor refused")
    if options.out:
        head = f"| model | 1 | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}\n"
        options.out.write_text(head + "\n".join(lines) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
