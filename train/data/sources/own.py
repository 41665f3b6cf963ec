"""A function of the user's: `data.source: my_package.my_data:tables`.

It is called with the experiment's `data` section. It returns what it has: tables of Hugging Face
`datasets` (a DatasetDict, or training and validation table), or (pixels, labels) of each, pixels
uint8 [N, H, W] or [N, H, W, C] of one channel or three, labels whole numbers or names.
"""

from typing import Any

import numpy as np
import torch

from host import dotted
from host.errors import DataError, UsageError, first_line
from train.config import Data
from train.data.pictures import Arrays, Found, Labelled, no_columns
from train.data.sources import labels

_WANTED = (
    "return a DatasetDict with train and validation, or (train, validation), each a Dataset or"
    " (pixels, labels)"
)
_OF_FILES = ("background", "white", "on_bad", "max_pixels", "prepare", "outside")


def splits(config: Data) -> Found:
    """Training and validation split that the function returns.

    Raises:
        UsageError: there is no such function.
        DataError: it fails, or returns something else.
    """
    function = dotted.load("data.source", config.source)
    try:
        made = function(config)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"data.source {config.source} failed ({type(error).__name__}: {first_line(error)})",
            "mend it; --debug shows where",
        ) from error
    if isinstance(made, dict) and {"train", "validation"} <= made.keys():
        pair: Any = (made["train"], made["validation"])
    else:
        pair = made
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise DataError(f"{config.source} returned {type(made).__name__}", _WANTED)
    if all(isinstance(each, tuple) and len(each) == 2 for each in pair):
        return _arrays(config, pair)
    from datasets import Dataset, DatasetDict

    from train.data.sources.tables import tables

    if not all(isinstance(each, Dataset) for each in pair):
        kinds = " and ".join(type(each).__name__ for each in pair)
        raise DataError(f"{config.source} returned {kinds}", _WANTED)
    return tables(DatasetDict(train=pair[0], validation=pair[1]), config)


def _arrays(config: Data, pair: Any) -> Found:
    no_columns(config, "arrays")
    for knob in _OF_FILES:
        if getattr(config, knob) != getattr(Data(), knob):
            raise UsageError(
                f"data.{knob} is set, and {config.source} returned pixels, not files",
                "take it away",
            )
    source = config.source
    pixels, said = zip(*pair, strict=True)
    try:
        values = [_plain(each) for each in said]
    except (TypeError, ValueError) as error:
        raise DataError(f"{source} returned labels that are no list: {error}", _WANTED) from error
    shaped = [_pixels(source, each) for each in pixels]
    if any(isinstance(label, list) for of_them in values for label in of_them[:1]):
        raise DataError(
            f"{source} returned labels of more than one dimension",
            "return one number for each picture: labels.argmax(1), where they are one-hot",
        )
    for images, of_them in zip(shaped, values, strict=True):
        if len(images) != len(of_them):
            raise DataError(
                f"{source} returned {len(images):,} pictures with {len(of_them):,} labels", _WANTED
            )
        if not len(images):
            raise DataError(f"{source} returned a split without pictures", _WANTED)
    train, held = (
        labels.Said(split, of_them, lambda n, s=split: f"{s} sample {n}")  # type: ignore[misc]
        for split, of_them in zip(("training", "validation"), values, strict=True)
    )
    classes, numbers = labels.number(train, held)
    made = [Labelled(Arrays(a), n) for a, n in zip(shaped, numbers, strict=True)]
    return Found(made[0], made[1], classes)


def _pixels(source: str, given: Any) -> torch.Tensor:
    """uint8 [N, C, H, W]."""
    array = np.asarray(given)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise DataError(
            f"{source} returned pixels of {array.dtype} with {array.ndim} dimensions",
            "return uint8 [N, H, W] or [N, H, W, C]; of 0 to 1: (255 * x).round().astype('uint8')",
        )
    if not array[:1].size and len(array):
        raise DataError(f"{source} returned pictures without pixels", _WANTED)
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] not in (1, 3):
        raise DataError(
            f"{source} returned pixels of {'×'.join(map(str, array.shape))}: the last is to be"
            " one channel or three",
            "return uint8 [N, H, W, C], C 1 or 3; channels first: transpose(0, 2, 3, 1); of two,"
            " make the third of zeros",
        )
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def _plain(values: Any) -> list[Any]:
    """Python's own numbers and names, whichever library's they were."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [each.item() if isinstance(each, np.generic) else each for each in listed]
