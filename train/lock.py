"""One writer for a run directory: a lock that names its holder and goes when the holder dies.

The lock is a POSIX record lock (fcntl): the kernel drops it when the process ends, however that
comes about; children do not inherit it; NFS carries it between hosts.
"""

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from train.errors import HostError, UsageError

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
    path = run / NAME
    file = _acquire(path, time.monotonic() + patience)
    try:
        file.truncate(0)
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        json.dump({"pid": os.getpid(), "host": platform.node(), "since": since}, file)
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _acquire(path: Path, deadline: float) -> IO[str]:
    while True:
        try:
            # Closed by the caller.
            file = path.open("a+")
        except OSError as error:
            raise HostError(
                f"cannot write {path}: {error.strerror}", "choose another --run"
            ) from error
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return file  # a file system without locks: no worse than before
            holder = _holder(path)
            file.close()
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{path.parent} is being written by {holder}",
                    "wait for it, stop it (kill -TERM, and it saves), or choose another --run",
                ) from None
            time.sleep(0.2)
            continue
        # The last holder may have removed the file between our open and our lock.
        with_name = path.stat().st_ino if path.exists() else None
        if with_name == os.fstat(file.fileno()).st_ino:
            return file
        file.close()


def _holder(path: Path) -> str:
    try:
        about = json.loads(path.read_text())
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
