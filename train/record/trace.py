"""trace.csv: each step's loss and gradient norm, exact, so that two runs can be compared by step.

Figures are hexadecimal floats (C99's %a, Python's `float.hex`): a decimal one would have to be
as long to say the same, and invites rounding.
"""

from collections.abc import Iterable
from pathlib import Path

from train.record.files import write_whole

NAME = "trace.csv"
_HEAD = "step,loss,grad_norm\n"

Figures = tuple[str, str]


def lines(first: int, rows: Iterable[tuple[float, float]]) -> str:
    """The lines of [loss, gradient norm] rows, the first of which is step `first`."""
    return "".join(
        f"{step},{loss.hex()},{norm.hex()}\n" for step, (loss, norm) in enumerate(rows, first)
    )


def cut(run: Path, step: int) -> None:
    """Make the file ready for what follows `step`: drop later steps, and half a last line."""
    kept = [f"{n},{loss},{norm}\n" for n, (loss, norm) in read(run).items() if n <= step]
    write_whole(run / NAME, (_HEAD + "".join(kept)).encode())


def read(run: Path) -> dict[int, Figures]:
    """Each step's figures, as written; empty where there is no trace."""
    path = run / NAME
    found: dict[int, Figures] = {}
    text = path.read_text(errors="replace") if path.exists() else ""
    for line in text.splitlines(keepends=True)[1:]:
        parts = line.rstrip("\n").split(",")
        if line.endswith("\n") and len(parts) == 3 and parts[0].isdigit():
            found[int(parts[0])] = (parts[1], parts[2])
    return found


def first_difference(one: dict[int, Figures], other: dict[int, Figures]) -> int | None:
    """The first step whose figures differ, or that only one of the two has; None: they agree."""
    steps = sorted(one.keys() | other.keys())
    return next((step for step in steps if one.get(step) != other.get(step)), None)
