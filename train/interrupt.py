"""Signals that ask a run to stop: they set a flag, and the loop looks at it between steps.

Saving inside a handler hangs: the signal may have come in the middle of a collective or a write.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopFlag:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A person at the keyboard who asks twice does not want to wait for a save.
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            os._exit(128 + number)
        self.signal = signal.Signals(number)


@contextmanager
def listen() -> Iterator[StopFlag]:
    """Catch the stopping signals for as long as the block lasts."""
    flag = StopFlag()
    before = {number: signal.signal(number, flag._on_signal) for number in SIGNALS}
    try:
        yield flag
    finally:
        # Once asked to stop, the process is on its way out: a launcher that asks all its children
        # when the first one leaves must not cut the others' last words short.
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if flag else handler)
