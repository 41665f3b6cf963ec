"""Where the time of training steps goes, by the device's own clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Adds up named spans.

    On a GPU a span is what passes between two marks in the queue of its work. The host runs ahead
    of it: a wait for data that the GPU never notices costs nothing, and is not counted.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._marks: list[tuple[str, Any, Any]] = []
        self._free: list[Any] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count the block under `name`."""
        if not self._cuda:
            start = time.perf_counter()
            yield
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
            return
        first = self._mark()
        yield
        self._marks.append((name, first, self._mark()))

    def read(self) -> dict[str, float]:
        """Seconds of each span since the last reading. Waits for nothing that is not done yet."""
        done = [mark for mark in self._marks if mark[2].query()]
        self._marks = self._marks[len(done) :]  # they come to pass in order
        for name, first, last in done:
            self._seconds[name] = self._seconds.get(name, 0.0) + first.elapsed_time(last) / 1e3
            self._free += [first, last]
        read, self._seconds = self._seconds, {}
        return read

    def _mark(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event
