"""How a run went: its figures over steps, its attempts, its warnings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from host.errors import CheckpointError
from train.record import metrics
from train.report.charts import Series

Row = dict[str, Any]


@dataclass(frozen=True)
class Course:
    """The records of a run by their kind, each in the order of steps."""

    train: list[Row]
    evaluations: list[Row]
    health: list[Row]
    warnings: list[str]

    def trained(self, name: str, said: str = "training") -> Series:
        """A figure of the training's steps."""
        return _series(self.train, name, said)

    def measured(self, name: str) -> Series:
        """A figure of the evaluations."""
        return _series(self.evaluations, name, "validation", points=True)

    def watched(self, name: str, said: str) -> Series | None:
        """A figure of the machine's; None where it has none."""
        held = [row for row in self.health if _is_number(row.get(name))]
        return _series(held, name, said) if held else None

    def mean(self, name: str) -> float | None:
        """A figure of the machine's, on average over steps."""
        held = [(row["step"], row[name]) for row in self.health if _is_number(row.get(name))]
        if not held:
            return None
        lengths = [held[0][0], *(after - before for (before, _), (after, _) in pairwise(held))]
        total = sum(lengths)
        values = [value for _, value in held]
        return sum(n * v for n, v in zip(lengths, values, strict=True)) / total if total else None

    def most(self, name: str) -> float | None:
        """The largest of a figure of the machine's."""
        return max((row[name] for row in self.health if _is_number(row.get(name))), default=None)


def read(run: Path) -> Course:
    """What a run has written down.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        rows = list(metrics.read(run))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {run / metrics.NAME}: {error.strerror}", "restore it from a copy"
        ) from error
    kinds = {name: [r for r in rows if r["kind"] == name] for name in ("train", "eval", "health")}
    said = [str(row.get("text")) for row in rows if row["kind"] == metrics.WARNING]
    # Each attempt says again what has not changed.
    return Course(kinds["train"], kinds["eval"], kinds["health"], list(dict.fromkeys(said)))


def _series(rows: Sequence[Row], name: str, said: str, *, points: bool = False) -> Series:
    values = [row.get(name) for row in rows]
    return Series(
        said,
        [row["step"] for row in rows],
        [value if _is_number(value) else None for value in values],
        points,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
