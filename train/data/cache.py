"""What was found out about data and need not be found out again, in files of this machine.

Each file begins with its own digest. Whatever is not whole is made anew.
"""

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from host import launcher, regular
from host.errors import DataError
from host.text import printable
from train.config import Data
from train.record import files

Arrays = dict[str, np.ndarray]
_DIGEST = hashlib.sha256().digest_size


def folder(config: Data) -> Path:
    """Where it is kept.

    Raises:
        DataError: what was named is no folder.
    """
    if config.cache_dir is not None:
        named = Path(config.cache_dir)
        file = next((path for path in (named, *named.parents) if path.is_file()), None)
        if file is not None:
            raise DataError(
                f"data.cache_dir is {named}, but {file} is a file",
                "name a folder, or drop it: what is kept then lies below ~/.cache",
            )
        return named
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "lockstep"
    except RuntimeError:  # a user without a name and a home, as containers have them
        return Path(tempfile.gettempdir()) / f"lockstep-{os.getuid()}"


@contextlib.contextmanager
def held(root: Path, key: str) -> Iterator[None]:
    """Let one process at a time find out what `key` names; the others wait for it.

    Where no lock can be had, each finds out for itself.
    """
    handle = -1
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.lockf(handle, fcntl.LOCK_EX)
    except OSError as error:
        if launcher.rank() == 0:
            said = f"warning: cannot lock {root} ({_why(error)}): every process looks for itself"
            print(printable(said), file=sys.stderr)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)  # the lock goes with it; the file stays, for who waits for it


def read(root: Path, key: str) -> Arrays | None:
    """What is kept under `key`; None where there is nothing, or nothing whole."""
    try:
        data = regular.read(root / key)
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None
        return load(data[_DIGEST:])
    except (OSError, ValueError, SafetensorError):
        return None


def _why(error: OSError) -> str:
    """What went wrong, in words."""
    is_file = isinstance(error, (FileExistsError, NotADirectoryError))
    return "it is a file, and no folder" if is_file else str(error.strerror)


def write(root: Path, key: str, arrays: Arrays) -> None:
    """Keep arrays under `key`. Where that cannot be done, it is said, and they are made again."""
    data = save(arrays)
    try:
        files.make_directory(root)
        files.write_whole(root / key, [hashlib.sha256(data).digest(), data])
    except OSError as error:
        if launcher.rank() == 0:
            said = (
                f"warning: cannot write {root} ({_why(error)}): what is found out about the data"
                " is found out again at each start; --data.cache_dir names another place"
            )
            print(printable(said), file=sys.stderr)
