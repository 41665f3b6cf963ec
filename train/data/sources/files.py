"""Files of pictures in a folder, by number, without a Python object for each."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from host import regular
from train.data.sources import places


@dataclass(frozen=True)
class Files:
    """Pictures that are files of their own.

    Loader processes share the names: a Python list would be copied into each, object by object, as
    it is read.

    Attributes:
        root: the folder that names follow from.
        names: their bytes, as the file system has them.
    """

    root: str
    names: pyarrow.BinaryArray

    def __len__(self) -> int:
        return len(self.names)

    def name(self, number: int) -> str:
        """The file's name in the folder."""
        return os.fsdecode(self.names[number].as_py())

    def read(self, number: int) -> bytes:
        """Its bytes. Raises OSError."""
        return regular.read(Path(self.root, self.name(number)))

    def state(self) -> str:
        """SHA-256 over names, sizes, times and places on disk: other once a file is written."""
        digest = hashlib.sha256()
        for number in range(len(self)):
            name = self.name(number)
            digest.update(places.about(Path(self.root, name)))
            digest.update(os.fsencode(name) + b"\n")
        return digest.hexdigest()


def files(root: Path, names: Sequence[str]) -> Files:
    """Those with these names in `root`."""
    return Files(str(root), pyarrow.array([os.fsencode(n) for n in names], pyarrow.binary()))
