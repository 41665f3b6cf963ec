"""Signals that ask a run to stop: they set a flag, and the run looks at it between steps.

Saving inside a handler hangs: the signal may have come in the middle of a collective or a write.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from host.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_AGAIN = 1.0  # seconds


class StopFlag:
    """Whether this process was asked to stop, and by which signal, if by one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked = False
        self._since = 0.0  # when a signal came first
        self._breaks = False

    def __bool__(self) -> bool:
        return self._asked or self.signal is not None

    def ask(self) -> None:
        """Ask it, without a signal."""
        self._asked = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A person at the keyboard who asks twice does not want to wait for a save. Who sends it to
        # every process has the launcher's come beside it, at once.
        now = time.monotonic()
        if number == signal.SIGINT and self.signal == signal.SIGINT and now > self._since + _AGAIN:
            os._exit(128 + number)
        if self.signal is None:
            self._since = now
        self.signal = signal.Signals(number)
        if self._breaks:
            raise KeyboardInterrupt

    @contextmanager
    def breaks(self) -> Iterator[None]:
        """Let a signal end the block at once: a long wait in which there is nothing to save.

        Raises:
            Stopped: a signal came, in the block or before it.
        """
        self._breaks = True
        try:
            if self:
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt as error:
            raise Stopped(
                "a signal came before the first step; nothing is lost",
                "start it again with the same command",
            ) from error
        finally:
            self._breaks = False


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
