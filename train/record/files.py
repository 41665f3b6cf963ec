"""Files that are whole or absent: written aside, synced, then renamed into place."""

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
