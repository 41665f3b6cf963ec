"""Files that are whole or absent: written aside, synced, then renamed into place.

What was written survives a power cut on any file system that keeps what was synced, a file's bytes
and a directory's names each by itself: no more is asked of it (POSIX).
"""

import os
from collections.abc import Iterable
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; without it a crash can undo a rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


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
