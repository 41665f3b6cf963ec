"""Files that are whole or absent: written aside, synced, then renamed into place.

What was written survives a power cut on any file system that keeps what was synced, a file's bytes
and a directory's names each by itself: no more is asked of it (POSIX).
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from host.errors import HostError

# What a file system says of what it cannot do; EIO as well, as rclone does.
_CANNOT = (
    *(errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO, errno.ESPIPE),
    *(errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST, errno.EMLINK),
)

_SLICE = 1 << 20  # bytes that stay in a processor's cache between the digest and the write


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; without it a crash can undo a rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_new(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """Write a file, durably.

    Returns:
        SHA-256 of what was in memory: one of what the disk gives back would vouch for a bad write.
    """
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts:
            whole = memoryview(part)
            for start in range(0, len(whole), _SLICE):
                digest.update(whole[start : start + _SLICE])
                file.write(whole[start : start + _SLICE])
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def make_directory(path: Path) -> None:
    """Make a directory and those above it, durably; one that is there stays.

    Raises:
        FileExistsError: a file is in its place.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Replace `path` by `parts`: a reader sees the old bytes or the new, never some of them."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to its neighbour `target`, in one step."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
    sync_directory(link.parent)


def try_out(folder: Path) -> None:
    """Do in `folder` once what a run does there; some file systems cannot.

    Raises:
        HostError: one of these.
    """
    what, aside = "make a directory", None
    for left in folder.glob(".try-*"):  # of one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        aside = Path(tempfile.mkdtemp(prefix=".try-", dir=folder))
        what = "replace a file"
        for content in (b"first", b"second"):
            write_whole(aside / "file", [content])
        what = "write in the middle and at the end of a file"
        with (aside / "file").open("rb+") as file:
            file.seek(1)
            file.write(b"E")
            file.seek(0, os.SEEK_END)
            file.write(b" line")
            file.truncate(8)
        with (aside / "file").open("ab") as file:
            file.write(b"ine")
        if (aside / "file").read_bytes() != b"sEcond line":
            raise OSError(errno.EIO, "what was written is not what is read")
        what = "make a symbolic link and replace it"
        for target in ("file", "other"):
            point(aside / "link", target)
        if (aside / "link").readlink() != Path("other"):
            raise OSError(errno.EIO, "what was written is not what is read")
        what = "rename a directory"
        (aside / "old").mkdir()
        (aside / "old" / "file").touch()
        (aside / "old").rename(aside / "new")
        sync_directory(aside)
    except OSError as error:
        if error.errno in _CANNOT:  # what else is wrong is said by who writes
            raise HostError(
                f"the file system of {folder} cannot {what} ({error.strerror}), as a run does",
                "name a --run on a local disk or on NFS, and copy it when it is finished",
            ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
