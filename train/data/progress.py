"""What a person sees while all pictures are read."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

T = TypeVar("T")
_QUIET = 10.0  # seconds between lines, without a terminal


def shown(parts: Iterable[T], what: str, each: int, count: int) -> Iterator[T]:
    """The parts as they come, with a bar on a terminal and a line now and then elsewhere.

    Args:
        each: pictures of a part, but for the last.
        count: pictures in all.
    """
    console = Console(stderr=True, highlight=False)
    said, done = time.monotonic(), 0
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(escape(what), total=count)
        for part in parts:
            yield part
            done = min(done + each, count)
            bar.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - said > _QUIET:
                console.print(f"{what}: {done:,} of {count:,}", markup=False)
                said = time.monotonic()
