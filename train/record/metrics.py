"""metrics.jsonl: a line for each logged step, evaluation, look at the machine, and warning."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from host import regular
from train.record.files import write_whole

NAME = "metrics.jsonl"
WARNING = "warning"
"""The kind of a line that holds a `text`: what was said on the way."""


def line(record: dict[str, Any]) -> str:
    """A record as it is written."""
    return json.dumps(record, allow_nan=False) + "\n"


def read(run: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a run; a line that a crash left half written is none.

    Raises:
        OSError: there is something else than a file.
    """
    with suppress(FileNotFoundError), regular.opened(run / NAME) as file:
        for row in file:
            with suppress(ValueError, RecursionError):
                record = json.loads(row)
                line(record)  # has no number that JSON has not
                if (
                    isinstance(record, dict)
                    and isinstance(record.get("kind"), str)
                    and type(record.get("step")) is int
                ):
                    yield record


def cut(run: Path, step: int, measured: int) -> None:
    """Drop what came after `step`, and a last line that a crash left half written.

    An evaluation may have been written down, and no checkpoint that knows of it.

    Args:
        measured: step of the last evaluation that counts.
    """
    if (run / NAME).exists():
        write_whole(
            run / NAME,
            (
                line(record).encode()
                for record in read(run)
                if record["step"] <= (measured if record["kind"] == "eval" else step)
            ),
        )
