"""Files that anybody may have put there: opened if they are files at all, read if not too large.

A pipe would be waited for, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path) -> BinaryIO:
    """A regular file, or a link's to one, open for reading.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    # Without waiting: to open a pipe waits for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read(path: Path, most: int | None = None) -> bytes:
    """A regular file's bytes, or those of a link's.

    Args:
        most: bytes it may have; None: any number.

    Raises:
        OSError: it cannot be read, is something else, or is larger.
    """
    data = b""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is None or size <= most:
            # What the kernel writes (/proc) has no size beforehand.
            data = file.read(-1 if most is None else most + 1)
    if most is not None and max(size, len(data)) > most:
        limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {limit}", str(path))
    return data
