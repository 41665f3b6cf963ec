"""Files that anybody may have put there: read whole, if they are files at all and not too large.

A pipe would be waited for, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read(path: Path, most: int | None = None) -> bytes:
    """A regular file's bytes, or a link's to one.

    Args:
        most: bytes it may have; None: any number.

    Raises:
        OSError: it cannot be read, is something else, or is larger.
    """
    # Without waiting: to open a pipe waits for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(handle)
        if stat.S_ISDIR(kind.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(kind.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = b""
        if most is None or kind.st_size <= most:
            with os.fdopen(handle, "rb", closefd=False) as file:
                # What the kernel writes (/proc) has no size beforehand.
                data = file.read(-1 if most is None else most + 1)
    finally:
        os.close(handle)
    if most is not None and max(kind.st_size, len(data)) > most:
        limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {limit}", str(path))
    return data
