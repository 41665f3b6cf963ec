"""The runs of a folder, each on a line: how it stands, and how it came out."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from host.errors import CheckpointError
from train.record import documents, lock, rundir
from train.record import metrics as metrics_file

STATUSES = ("finished", "stopped", "failed", "running", "ended", "damaged")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class Listed:
    """A run; None where its files do not say.

    Attributes:
        run: its directory.
        status: one of STATUSES; `ended` is without a word, such as by a power cut.
        top1, best: of the last evaluation and of the best one, fractions from 0 to 1.
        seconds: of training, over all attempts.
        weights: SHA-256 of the final weights.
        started: seconds since 1970.
    """

    run: str
    status: str
    top1: float | None
    best: float | None
    steps: int | None
    seconds: float | None
    processes: int | None
    seed: int | None
    weights: str | None
    started: float | None

    def written(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


COLUMNS = [field.name for field in fields(Listed)]


def found(root: Path) -> list[Listed]:
    """All runs below a folder, the one that was started last at the end."""
    every = [_listed(path.parent) for path in root.glob("**/run.json")]
    return sorted(every, key=lambda each: (each.started or 0, each.run))


def _listed(run: Path) -> Listed:
    try:
        record, result = documents.record(run) or {}, documents.result(run) or {}
    except CheckpointError:
        return Listed(str(run), "damaged", *[None] * (len(COLUMNS) - 2))
    metrics, best = result.get("metrics", {}), result.get("best", {})
    if not metrics:  # it was killed, or stopped
        metrics, best, come = _so_far(run)
        result = result or come
    status = status_of(run, record, result)
    started = None
    with suppress(ValueError):
        started = datetime.fromisoformat(str(record.get("started"))).timestamp()
    return Listed(
        run=str(run),
        status=status,
        top1=_plain(metrics.get("top1")),
        best=_plain(best.get("top1")),
        steps=_plain(result.get("steps")),
        seconds=_plain(result.get("seconds")),
        processes=_plain(record.get("world_size")),
        seed=_plain(record.get("seed")),
        weights=result.get("weights_sha256") or None,
        started=started,
    )


def _so_far(run: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Figures of the last evaluation and the best one, and how far a run had come, without a
    result: what a training wrote down on the way.
    """
    last: dict[str, Any] = {}
    best: dict[str, Any] = {}
    step = max(
        (rundir.step_of(path) or 0 for path in rundir.steps(rundir.checkpoints(run))), default=0
    )
    with suppress(OSError):
        for row in metrics_file.read(run):
            step = max(step, row["step"])
            if row["kind"] == "eval" and _plain(row.get("top1")) is not None:
                last = row
                best = max(best, row, key=lambda each: _plain(each.get("top1")) or 0)
    return last, best, {"steps": step} if step else {}


def status_of(run: Path, record: dict[str, Any], result: dict[str, Any]) -> str:
    """One of STATUSES, by what a run's files say and who writes them."""
    if lock.is_held(run):
        return "running"
    status = str(result.get("status", "ended"))
    if status != "finished" and record.get("ended", "") is None:
        return "ended"  # what result.json says is of an earlier attempt
    return status


def _plain(value: Any) -> Any:
    """A number, of a file in which anything may stand."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def table(runs: Sequence[Listed]) -> list[str]:
    """A line for each, below one with the names of the columns."""
    rows = [
        [
            "run",
            "status",
            "top-1",
            "best",
            "steps",
            "seconds",
            "processes",
            "seed",
            "weights",
            "age",
        ]
    ]
    now = time.time()
    rows += [
        [
            each.run,
            each.status,
            _share(each.top1),
            _share(each.best),
            *(_number(value) for value in (each.steps, each.seconds, each.processes, each.seed)),
            (each.weights or "")[:8],
            _age(now - each.started) if each.started is not None else "",
        ]
        for each in runs
    ]
    left = {0, 1, 8}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _age(seconds: float) -> str:
    unit, length = next((u for u in _UNITS if seconds >= u[1]), _UNITS[-1])
    return f"{seconds / length:.0f} {unit}"
