"""Does a model come out in the same bits on 1, 2 and 4 processes, killed and resumed, measured and
trained again? Or is it refused by name? Tried on models that people write; a third outcome is a bug.

    python benchmarks/idioms.py MODELS.py [--only NAME …] [--reproduce] [--out TABLE.md]

MODELS.py has ALL, a mapping of names to functions (classes, (C, H, W)) -> nn.Module. They are put
into a copy of this checkout as a user would put them there, and trained on 8×8 digits: nine steps,
the last one short, with evaluations and checkpoints on the way.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("host", "train", "configs", "requirements", "tests", "benchmarks")
WORDS = (
    "--data.source", "digits", "--batch_size", "32", "--lanes", "4", "--epochs", "0.2",
    "--checkpoint.every", "2", "--eval.every", "4", "--log.every", "1", "--optim.lr", "0.02",
)  # fmt: skip
COLUMNS = ("2", "4", "killed, 1 → 2", "killed, 2 → 1", "evaluated", "reproduced")
# Passes over lanes until SIGKILL: in the middle of the fifth step.
STRIKE = {1: 18, 2: 9}


@dataclass
class Ended:
    """How a run ended: what came out, or the line it was refused with."""

    codes: list[int | None]
    said: str
    found: dict[str, Any] | None

    @property
    def refusal(self) -> str | None:
        """The one line, where it was refused as it should be: before the first step."""
        lines = [line for line in self.said.splitlines() if line.startswith("error: ")]
        good = set(self.codes) == {2} and len(lines) == 1 and "Traceback" not in self.said
        return lines[0].removeprefix("error: ") if good else None


def copy_with(models: Path, there: Path) -> None:
    """A copy of the checkout in which these models are among ours."""
    for name in COPIED:
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, there / name, ignore=skip)
    shutil.copy(models, there / "train/learn/idioms.py")
    with (there / "train/learn/models.py").open("a") as file:
        file.write("\n\nfrom train.learn import idioms\n\nOURS.update(idioms.ALL)\n")


def train(home: Path, name: str, world: int, run: Path, log: str, strike: int = 0) -> Ended:
    """Train on `world` processes; `strike`: SIGKILL all in the middle of that lane."""
    from fault import harness

    words = ["fit", "--model.name", name, *WORDS, "--run", run, "--resume"]
    blow = {"at": "lane", "count": strike, "signal": signal.SIGKILL}
    strikes = {rank: blow for rank in range(world)} if strike else None
    attempt = harness.start(home / name / log, world, words, strikes)
    codes = attempt.wait(120)
    attempt.end()
    result = run / "result.json"
    found = json.loads(result.read_text()) if result.exists() else None
    if found is not None and found["status"] != "finished":
        found = None
    if found is not None:
        found = {key: found[key] for key in ("weights_sha256", "metrics", "best", "steps")}
        found["trace"] = (run / "trace.csv").read_text()
    return Ended(codes, attempt.output(), found)


def evaluated(home: Path, name: str, world: int, run: Path) -> Any:
    """The figures that `evaluate` gives on `world` processes."""
    from fault import harness

    attempt = harness.start(home / name / f"evaluate-{world}", world, ["evaluate", "--run", run])
    codes = attempt.wait(120)
    attempt.end()
    lines = [line for line in attempt.output().splitlines() if line.startswith("{")]
    if set(codes) != {0} or len(lines) != 1:
        return attempt.output()[-300:]
    figures = json.loads(lines[0])
    return {key: figures[key] for key in figures if key not in ("checkpoint", "step")}


def reproduced(name: str, run: Path) -> str:
    """`reproduce` on two processes, as it is called."""
    words = [sys.executable, "-m", "train", "reproduce", str(run), "--cpus", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shutil.rmtree(Path("runs") / f"{name}-again", ignore_errors=True)
    return "equal" if done.returncode == 0 else (done.stderr.splitlines() or ["?"])[-1][:300]


def row(home: Path, name: str, *, again: bool) -> list[str]:
    """A model's outcomes: on one process, and in each column."""
    run = {key: home / name / key for key in ("1", "2", "4", "k12", "k21")}
    first = train(home, name, 1, run["1"], "log-1")
    refusal = first.refusal
    if refusal is not None:
        others = [train(home, name, world, run[str(world)], f"log-{world}") for world in (2, 4)]
        alike = all(other.refusal == refusal for other in others)
        bad = [o.refusal or f"NOT REFUSED {o.codes} {o.said[-200:]}" for o in others]
        return [f"refused: {refusal}" if alike else f"UNLIKE: {refusal} | {' | '.join(bad)}"]
    if first.found is None:
        return [f"FAILED {first.codes}: {first.said[-400:]}"]
    cells = ["trained"]
    for world in (2, 4):
        cells.append(verdict(first, train(home, name, world, run[str(world)], f"log-{world}")))
    for key, before, after in (("k12", 1, 2), ("k21", 2, 1)):
        killed = train(home, name, before, run[key], f"log-{key}", STRIKE[before])
        if killed.found is not None:
            cells.append("NOT KILLED")
            continue
        cells.append(verdict(first, train(home, name, after, run[key], f"log-{key}-again")))
    figures = [evaluated(home, name, world, run["1"]) for world in (1, 2)]
    same = all(f == first.found["metrics"] for f in figures)
    cells.append("equal" if same else f"DIFFERENT figures: {str(figures)[:300]}")
    if again:
        cells.append(reproduced(name, run["1"]))
    return cells


def verdict(first: Ended, other: Ended) -> str:
    """Whether the other run ended in the same."""
    if other.found == first.found:
        return "equal"
    if other.found is None:
        return f"FAILED {other.codes}: {other.said[-300:]}"
    assert first.found is not None
    return f"DIFFERENT {[key for key in first.found if first.found[key] != other.found[key]]}"


def main() -> int:
    """Try them, and print the table; 1 where one of them is neither equal nor refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--reproduce", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder) / "checkout"
            copy_with(options.models.resolve(), there)
            out = ["--out", str(options.out.resolve())] if options.out else []
            rest = [word for word in sys.argv[1:] if word != str(options.models)]
            words = [sys.executable, "benchmarks/idioms.py", "--inside", *rest, *out]
            environ = {**os.environ, "PYTHONPATH": f"{there}:{there / 'tests'}"}
            return subprocess.run(words, cwd=there, env=environ, check=False).returncode
    return table(options)


def table(options: argparse.Namespace) -> int:
    """In the copy: every row, two models at a time."""
    from train.learn import idioms

    names = options.only or list(idioms.ALL)
    home = Path(tempfile.mkdtemp())
    lines, bad = [], 0
    with ThreadPoolExecutor(2) as pool:
        rows = pool.map(lambda name: row(home, name, again=options.reproduce), names)
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
