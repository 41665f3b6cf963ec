"""trace.csv: each step's loss and gradient norm, exact, so that two runs can be compared by step.

Figures are hexadecimal floats (C99's %a, Python's `float.hex`): a decimal one would have to be
as long to say the same, and invites rounding.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from host import regular
from train.record.files import write_whole

NAME = "trace.csv"
_HEAD = "step,loss,grad_norm\n"
_LINE = re.compile(rb"([0-9]{1,18}),([-.0-9a-fpinx+]+),([-.0-9a-fpinx+]+)\n")

Figures = tuple[str, str]


def lines(first: int, rows: Iterable[tuple[float, float]]) -> str:
    """The lines of [loss, gradient norm] rows, the first of which is step `first`."""
    return "".join(
        f"{step},{loss.hex()},{norm.hex()}\n" for step, (loss, norm) in enumerate(rows, first)
    )


def cut(run: Path, step: int) -> None:
    """Make the file ready for what follows `step`: drop later steps, and half a last line."""
    kept = (f"{n},{loss},{norm}\n" for n, (loss, norm) in _rows(run) if n <= step)
    write_whole(run / NAME, (text.encode() for text in chain([_HEAD], kept)))


def read(run: Path) -> dict[int, Figures]:
    """Each step's figures, as written; empty where there is no trace.

    Raises:
        OSError: there is something else than a file.
    """
    return dict(_rows(run))


def _rows(run: Path) -> Iterator[tuple[int, Figures]]:
    """A line at a time: a million steps take 50 MB on the disk, and ten times that in memory."""
    with suppress(FileNotFoundError), regular.opened(run / NAME) as file:
        for line in islice(file, 1, None):
            found = _LINE.fullmatch(line)
            if found:
                step, loss, norm = (part.decode() for part in found.groups())
                yield int(step), (loss, norm)


def first_difference(one: dict[int, Figures], other: dict[int, Figures]) -> int | None:
    """The first step whose figures differ, or that only one of the two has; None: they agree."""
    steps = sorted(one.keys() | other.keys())
    return next((step for step in steps if one.get(step) != other.get(step)), None)
