"""What came of a sweep's trials: each with its run, and seeds of the same point together."""

import csv
import io
import re
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.errors import CheckpointError
from train.record import documents, metrics, rundir
from train.sweeps.points import SEED, Points
from train.sweeps.study import Trial

# Knobs that change what a record says of the machine, and what they leave to be compared.
_MOVING = {"optim.name", "reproducibility", "numerics"}
_NAMING = {"model.name", "data.source", "optim.loss"}  # of code of the user's own
_FIXED = ("code", "package", "image", "mixed_precision")


@dataclass(frozen=True)
class Result:
    """Of a run that is finished.

    Attributes:
        top1: of the last evaluation, a fraction.
        weights: SHA-256 of what was measured: the final weights, or their average.
    """

    top1: float
    loss: float | None
    steps: int
    seconds: float
    weights: str


@dataclass(frozen=True)
class Row:
    """A trial and its result; None where it has none."""

    trial: Trial
    result: Result | None


@dataclass(frozen=True)
class Point:
    """The trials that differ in their seed only.

    Attributes:
        values: of the knobs that are varied, without the seed.
        seeds: how many such trials there are to be.
    """

    values: dict[str, str]
    rows: list[Row]
    seeds: int

    @property
    def top1(self) -> list[float]:
        """Of those that are finished."""
        return [row.trial.top1 for row in self.rows if row.trial.top1 is not None]

    @property
    def mean(self) -> float | None:
        """Of top-1; None where none is finished."""
        return statistics.fmean(self.top1) if self.top1 else None

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation of top-1; None of less than two."""
        return statistics.stdev(self.top1) if len(self.top1) > 1 else None


def run_of(folder: Path, number: int) -> Path:
    """The run directory of a trial."""
    return folder / "trials" / f"{number:04d}"


def result(folder: Path, number: int) -> Result | None:
    """What a trial's run came out with; None where it is not finished.

    Raises:
        CheckpointError: its file is damaged.
    """
    run = run_of(folder, number)
    if rundir.status(run) != "finished":
        return None
    found = documents.result(run) or {}
    try:
        figures = found["metrics"]
        return Result(
            float(figures["top1"]),
            figures["loss"],
            found["steps"],
            float(found["seconds"]),
            found.get("ema_sha256") or found["weights_sha256"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{run / documents.RESULT} is damaged: {error!r}", "restore it from a copy"
        ) from error


def rows(folder: Path, trials: Sequence[Trial]) -> list[Row]:
    """Each trial with its result."""
    return [Row(trial, result(folder, trial.number)) for trial in trials]


def points(rows: Sequence[Row], planned: Points) -> list[Point]:
    """The rows by their point, the best first; those behind that lack a seed, and last those that
    have no result.
    """
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.trial.number // planned.seeds, []).append(row)
    made = []
    for some in found.values():
        values = dict(some[0].trial.values)
        if planned.seeds > 1:
            del values[SEED]
        made.append(Point(values, some, planned.seeds))
    return sorted(made, key=lambda p: (p.mean is None, len(p.top1) < p.seeds, -(p.mean or 0.0)))


def table(folder: Path, rows: Sequence[Row], names: Sequence[str]) -> str:
    """All trials as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    figures = ("top1", "loss", "steps", "seconds", "weights_sha256")
    writer.writerow(["trial", *names, "status", *figures, "run", "why"])
    for row in rows:
        trial, came = row.trial, row.result
        said: list[Any] = [trial.top1, "", "", "", ""]  # a run's folder may be gone
        if came is not None:
            said = [came.top1, came.loss, came.steps, came.seconds, came.weights]
        values = [trial.values.get(name, "") for name in names]
        run = run_of(folder, trial.number)
        why = trial.error.problem if trial.error else ""
        writer.writerow([trial.number, *values, trial.status, *said, run, why])
    return out.getvalue()


def warnings(folder: Path, rows: Sequence[Row]) -> list[str]:
    """What trainings warned of, a line for each kind: numbers alone make no other kind."""
    found: dict[str, tuple[str, list[int]]] = {}
    for row in rows:
        with suppress(OSError):
            for record in metrics.read(run_of(folder, row.trial.number)):
                if record["kind"] == metrics.WARNING:
                    text = str(record.get("text"))
                    kind = re.sub(r"[-+.\deE]*\d[-+.\deE]*", "#", text)
                    numbers = found.setdefault(kind, (text, []))[1]
                    if row.trial.number not in numbers:
                        numbers.append(row.trial.number)
    return [
        f"trial {numbers[0]}{f' and {len(numbers) - 1} more' * (len(numbers) > 1)}: {text}"
        for text, numbers in found.values()
    ]


def ties(found: Sequence[Point]) -> list[str]:
    """A line where the best figure is that of several points."""
    best = found[0].mean if found else None
    count = sum(point.mean == best and len(point.top1) == point.seeds for point in found)
    if best is None or count < 2:
        return []
    said = f"{count} points have the best top-1, {100 * best:.2f} %, and the first of them is taken"
    return [f"{said}: more seeds or more validation pictures may tell them apart"]


def strangers(folder: Path, rows: Sequence[Row], planned: Points) -> list[str]:
    """Trials that another code, package, machine or data trained than the first: a fair comparison
    has none. A line for each.
    """
    from train.record import comparison  # imports torch

    found, first = [], None
    moved = any(axis.knob in _MOVING for axis in planned.axes)
    named = any(axis.knob in _NAMING for axis in planned.axes)
    meant = [
        name
        for knob, name in (("data.", "data"), ("model.", "starting weights"))
        if any(axis.knob.startswith(knob) for axis in planned.axes)
    ]
    for row in rows:
        record = documents.record(run_of(folder, row.trial.number)) if row.result else None
        if record is None:
            continue
        first = first or (row.trial.number, record)
        # Code that a trial does not name is not imported there.
        other = [
            name
            for name, *both in comparison.unlike(first[1], record)
            if not (named and name.startswith("code ") and "none" in both)
        ]
        if moved:
            other = [name for name in other if name.split()[0] in _FIXED]
        other = [name for name in other if name not in meant]
        if other:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            found.append(f"trial {row.trial.number} has another {other[0]}{more} than {first[0]}")
    return found
