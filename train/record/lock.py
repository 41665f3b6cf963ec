"""One writer for a run directory: a lock that names its holder and goes when the holder dies.

The lock is a POSIX record lock (fcntl): the kernel drops it when the process ends, however that
comes about; children do not inherit it; NFS carries it between hosts. A sign of life stands beside
it, since some file systems grant a lock on each machine.
"""

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from host import CONTAINER, INSIDE, regular
from host.errors import HostError, UsageError
from train.record import alive

NAME = ".lock"
# A holder that was just orphaned has this long to save and go.
PATIENCE = 5.0


@contextmanager
def hold(run: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only writer of the run directory `run` for as long as the block lasts.

    Args:
        patience: seconds to wait for another holder to go.

    Raises:
        UsageError: another process holds it.
        HostError: the lock file cannot be written.
    """
    path, deadline = run / NAME, time.monotonic() + patience
    handle = _alone(path, deadline)
    # On a disk that has failed or gone read-only, the error that is on its way says more; the
    # lock itself goes with the handle.
    with ExitStack() as held:
        held.callback(_close, handle)
        held.enter_context(alive.shown(run))
        _sign(handle)
        held.callback(_forget, path, handle)
        yield


def _sign(handle: int) -> None:
    """Say in the file who has the lock."""
    since = datetime.now().isoformat(sep=" ", timespec="seconds")
    about = {"pid": os.getpid(), "host": platform.node(), "since": since}
    # Who was told no name has that of the host, by which Docker knows it as well.
    container = os.environ.get(CONTAINER) or (platform.node() if INSIDE.exists() else "")
    about |= {"container": container} if container else {}
    with suppress(OSError):  # a full disk: the lock holds without its holder's name
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(about).encode())


def _forget(path: Path, handle: int) -> None:
    with suppress(OSError):
        if _named(path, handle):
            path.unlink(missing_ok=True)


def _close(handle: int) -> None:
    with suppress(OSError):
        os.close(handle)


def is_held(run: Path) -> bool:
    """Whether a process writes the run directory `run` now, here or on another machine."""
    try:
        handle = os.open(run / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # nobody made it, or it is not for us to see
        return alive.lately(run)
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # or a file system without locks
        return error.errno in (errno.EACCES, errno.EAGAIN)
    else:
        return alive.lately(run)
    finally:
        os.close(handle)


def _alone(path: Path, deadline: float) -> int:
    """A handle of the file `path`, locked, where nobody else shows that it writes the directory."""
    while True:
        handle = _acquire(path, deadline)
        try:
            writer = alive.wait(path.parent, deadline)
        except HostError:
            os.close(handle)
            raise
        # Who was waited for may have removed the file.
        if writer is None and _named(path, handle):
            return handle
        os.close(handle)
        if writer is not None:
            raise _refused(path.parent, writer, "kill -TERM")


def _acquire(path: Path, deadline: float) -> int:
    """A handle of the file `path`, locked."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o644)
        except OSError as error:
            raise HostError(
                f"cannot write {path}: {error.strerror}",
                "choose another --run",
            ) from error
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                os.close(handle)
                raise HostError(
                    f"{path.parent} is on a file system without locks ({error.strerror}), so two"
                    " trainings could write it at once",
                    "mount it with locks (for Lustre: -o flock), or choose another --run",
                ) from error
            holder, stop = _holder(path)
            os.close(handle)
            if time.monotonic() > deadline:
                raise _refused(path.parent, holder, stop) from None
            time.sleep(0.2)
            continue
        # The last holder may have removed the file between our open and our lock.
        if _named(path, handle):
            return handle
        os.close(handle)


def _refused(run: Path, holder: str, stop: str) -> UsageError:
    return UsageError(
        f"{run} is being written by {holder}",
        f"wait for it, stop it ({stop}, and it saves), or choose another --run",
    )


def _named(path: Path, handle: int) -> bool:
    """Whether `path` is still the file of `handle`."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _holder(path: Path) -> tuple[str, str]:
    """Who holds it, and how that is asked to save and go."""
    try:
        about = json.loads(regular.read(path, 1 << 12))
        if about.get("container"):
            name = f"the container {about['container']} on {about['host']} since {about['since']}"
            return name, f"docker stop {about['container']}"
        name = f"process {about['pid']} on {about['host']} since {about['since']}"
        return name, f"kill -TERM {int(about['pid'])}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "another process", "kill -TERM"
