"""The file that Optuna keeps a sweep's trials in: a line for each thing that happened."""

import os
from contextlib import suppress
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock

NAME = "journal.log"


def opened(path: Path) -> JournalStorage:
    """The journal at `path`, which is made where it is not there yet.

    Raises:
        OSError: it cannot be read or written.
    """
    _cut(path)
    return JournalStorage(JournalFileBackend(str(path), _Held()))


class _Held(BaseJournalFileLock):
    """No lock of its own, which a kill would leave behind: who has the sweep's folder has this."""

    def acquire(self) -> bool:
        """It is held."""
        return True

    def release(self) -> None:
        """It stays."""


def _cut(path: Path) -> None:
    """Drop a last line that a crash left half written: the next one would be written behind it."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        os.fsync(file.fileno())
