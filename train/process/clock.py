"""How long a run has trained."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training, without the pauses."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = time.perf_counter()

    def read(self) -> float:
        """Seconds so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the block."""
        self._seconds, self._since = self.read(), None
        try:
            yield
        finally:
            self._since = time.perf_counter()
