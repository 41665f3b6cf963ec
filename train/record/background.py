"""Work beside the training, one piece at a time, such as writing a checkpoint to a slow disk."""

import threading
from collections.abc import Callable

Work = Callable[[], None]


class Background:
    """A thread that does what it is given while the caller goes on.

    The thread does no arithmetic of torch's, which would take cores from the training.
    """

    def __init__(self) -> None:
        # An event of our own: where a signal's handler raises in Thread.join, the next join returns
        # at once, and the thread still works.
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None

    def begin(self, work: Work) -> None:
        """Do `work`, and do not wait; but for the one before it.

        Raises:
            LockstepError: what the one before it raised; nothing is begun.
        """
        self.finish()
        self._idle.clear()
        started = False
        try:  # a signal's handler may raise on the way
            threading.Thread(target=self._do, args=(work,), name="background").start()
            started = True
        finally:
            if not started:
                self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether it works."""
        return not self._idle.is_set()

    def wait(self) -> None:
        """Wait until the work is done, whether it fails or not."""
        self._idle.wait()

    def finish(self) -> None:
        """Wait until the work is done.

        Raises:
            LockstepError: what it raised.
        """
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception as error:  # raised where somebody waits for the work
            self._error = error
        finally:
            self._idle.set()
