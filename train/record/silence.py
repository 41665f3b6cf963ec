"""A line about what takes long, so that nobody wonders whether anything happens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from host.text import printable

_AFTER = 5.0  # seconds of silence that people bear


@contextmanager
def told(what: str, *, main: bool, file: TextIO | None = None) -> Iterator[None]:
    """Say what is being done, on the main process, if it is not done within seconds."""
    timer = threading.Timer(_AFTER, lambda: print(printable(what), file=file, flush=True))
    timer.daemon = True
    if main:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
