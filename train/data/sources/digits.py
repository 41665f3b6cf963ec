"""scikit-learn's 1,797 handwritten digits, 8×8 pixels, 17 grey levels spread over 0 … 255."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from host.errors import DataError
from train.config import Data
from train.data.pictures import Arrays, Found, Labelled, halves

_CLASSES = [*"0123456789"]


def splits(config: Data) -> Found:
    """Their training and validation split.

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
    train, held = halves(Labelled(Arrays(torch.from_numpy(grey)[:, None]), labels), config.holdout)
    return Found(train, held, _CLASSES)
