"""A sign of life beside a lock, for file systems whose locks do not reach other machines.

sshfs, bindfs, mergerfs and gocryptfs, and NFS that is mounted with nolock or local_lock, let two
machines, or two mounts, have the same lock. So the writer rewrites a small file every two seconds,
and who wants to write looks first whether it changes. No clocks are compared.
"""

import json
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from host.errors import HostError
from host.text import printable
from train.process import outcome
from train.record import sign

BEAT = 2.0
"""Seconds from one sign of life to the next."""
QUIET = 20.0
"""Seconds without one after which a writer is dead."""


def wait(folder: Path, deadline: float) -> str | None:
    """Wait until nobody writes `folder`, whose lock this process has.

    Args:
        deadline: on `time.monotonic`'s clock, when a writer that lives is waited for no longer.

    Returns:
        The writer that lives, for people; None where there is none.

    Raises:
        HostError: it cannot be found out.
    """
    try:
        return _wait(folder, deadline)
    except OSError as error:
        raise HostError(
            f"cannot read {folder / sign.NAME}: {error.strerror}",
            "choose another --run",
        ) from error


def _wait(folder: Path, deadline: float) -> str | None:
    seen, since, said = sign.read(folder), time.monotonic(), False
    while seen is not None and not sign.gone(folder, seen):
        looked = time.monotonic()
        time.sleep(BEAT / 4)
        text, now = sign.read(folder), time.monotonic()
        if text != seen:
            if text is not None and now > deadline:
                return sign.who(text)
            seen, since = text, now
        elif now - looked > BEAT:  # a disk that hangs shows no sign of the other either
            since = now
        elif now - since > QUIET:
            break
        elif not said and now - since > BEAT * 2:
            said = True
            what = (
                f"{folder} was written by {sign.who(seen)}: looking for {QUIET:.0f} s whether it is"
            )
            print(printable(f"{what} still"), file=sys.stderr, flush=True)
    return None


@contextmanager
def shown(folder: Path) -> Iterator[None]:
    """Show for as long as the block lasts that this process writes `folder`.

    The process ends with HostError's code where another one has taken it.

    Raises:
        HostError: it cannot be shown, where a lock is not enough.
    """
    writer = _Writer(folder)
    writer.begin()
    _WRITERS[folder] = writer
    try:
        yield
    finally:
        del _WRITERS[folder]
        writer.end()


def check(folder: Path) -> None:
    """End this process if it shows that it writes `folder`, and another one has taken it."""
    if folder in _WRITERS:
        with suppress(OSError):
            _WRITERS[folder].check()


def lately(folder: Path) -> bool:
    """Whether a process seems to write `folder`, at a look: by clocks, which may differ."""
    with suppress(OSError):
        text = sign.read(folder)
        if text is not None and not sign.gone(folder, text):
            return abs(time.time() - (folder / sign.NAME).stat().st_mtime) < QUIET
    return False


class _Writer:
    """A thread that shows that this process lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / sign.NAME
        self.token, self.count = secrets.token_hex(8), 0
        self.since = datetime.now().isoformat(sep=" ", timespec="seconds")
        self.far = sign.far(folder)
        self.last: float | None = None  # when a sign was written
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Write the first sign and start the others."""
        with suppress(OSError):  # a dead one's, who may have been another user
            self.path.unlink(missing_ok=True)
        try:
            self._show()
        except OSError as error:
            if self.far:
                raise HostError(
                    f"cannot write {self.path}: {error.strerror}",
                    "choose another --run",
                ) from error
        self.thread.start()

    def end(self) -> None:
        """Take it away."""
        self.done.set()
        self.thread.join(timeout=BEAT)  # a disk that hangs is not waited for
        with suppress(OSError):
            # Without a token it is what a full disk left of ours.
            if sign.fields(sign.read(self.folder)).get("token") in (None, self.token):
                self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """End this process where another one shows that it writes the folder."""
        text = sign.read(self.folder)
        token = sign.fields(text).get("token")
        if token is not None and token != self.token:
            self._lost(f"{sign.who(text)} writes it")
        # Another one takes it only after this time: a file that is gone sooner was just removed.
        if text is None and self.last is not None and time.monotonic() - self.last > QUIET:
            self._lost(f"{self.path} was removed meanwhile")

    def _show(self) -> None:
        self.count += 1
        about = {
            "pid": os.getpid(),
            "host": platform.node(),
            "since": self.since,
            "kernel": sign.kernel(),
            "far": self.far,
            "token": self.token,
            "count": f"{self.count:010d}",
        }
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, json.dumps(about).encode().ljust(sign.LENGTH), 0)
        finally:
            os.close(handle)  # which sends it to the machine that holds the disk
        self.last = time.monotonic()

    def _run(self) -> None:
        while not self.done.wait(BEAT):
            began = time.monotonic()
            # The disk may be full or away, and do better in two seconds.
            with suppress(OSError):
                self.check()
                # What was seen before a pause is no longer so: look again.
                if time.monotonic() - began < QUIET / 2 and not self.done.is_set():
                    self._show()

    def _lost(self, why: str) -> None:
        """End this process before it writes among another one's files."""
        error = HostError(
            f"{self.folder} is no longer this process's: {why}",
            "see that one training at a time writes it, then add --resume",
            one_rank=True,
        )
        outcome.ended(error, shown=True)
        # Whoever reads what is said may have stopped to.
        threading.Timer(1, os._exit, (error.code,)).start()
        with suppress(OSError, ValueError):
            print(error.line(), file=sys.stderr, flush=True)
        os._exit(error.code)


_WRITERS: dict[Path, _Writer] = {}
