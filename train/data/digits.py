"""scikit-learn's 1,797 handwritten digits, 8×8 pixels, 17 grey levels spread over 0 … 255."""

import gzip
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image, fromarray

from host.errors import DataError
from train.config import Data
from train.data.pictures import Labelled, kept_and_held

_CLASSES = [*"0123456789"]


@dataclass(frozen=True)
class Digits:
    """uint8 [N, 8, 8]."""

    grey: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.grey)

    def decoded(self, numbers: list[int]) -> list[Image]:
        """As pictures."""
        return [fromarray(self.grey[number]) for number in numbers]

    def encoded(self) -> Iterator[bytes]:
        """Their pixels."""
        return (grey.tobytes() for grey in self.grey)


def splits(config: Data) -> tuple[Labelled, Labelled, list[str]]:
    """Training and validation split, and the names of the classes.

    Read from the file in scikit-learn's package: importing that to open it would take a second, and
    a table of `datasets` another one.

    Raises:
        DataError: the experiment names columns, of which these have none.
    """
    for knob in ("image_column", "label_column"):
        if getattr(config, knob) is not None:
            raise DataError(f"digits have no columns, but data.{knob} is set", "take it away")
    package = importlib.util.find_spec("sklearn")
    folder = Path(package.origin or "").parent if package else Path()
    with gzip.open(folder / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    grey = (table[:, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    labels = torch.from_numpy(table[:, -1].copy())
    kept, held = kept_and_held(len(table), config.holdout)
    train, validation = (Labelled(Digits(grey[n.numpy()]), labels[n]) for n in (kept, held))
    return train, validation, _CLASSES
