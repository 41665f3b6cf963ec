"""From tables to a training and a validation split: columns, classes, statistics, fingerprint.

Raises DataError throughout, with what is wrong and how to mend it.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import ClassLabel, Dataset, DatasetDict, Image, Value
from torch import Tensor

from host.errors import DataError
from train.config import Data
from train.data.images import Split, decoded, keep
from train.data.tables import open_tables
from train.lanes import order

PIXELS = 1 << 30
"""Bytes: the fingerprint of a split is of its pixels up to here, and of encoded files above."""
_AT_ONCE = 1 << 21  # pixels
_HELD_OUT = ("validation", "valid", "val", "dev", "test")


@dataclass(frozen=True)
class ImageData:
    """A training and a validation split with the same classes.

    Attributes:
        classes: their names, in label order.
        mean, std: of each channel, pixels from 0 to 1.
        sha256: over pixels (or encoded bytes, where they are many) and labels of both splits;
            None where it was not asked for.
    """

    train: Split
    validation: Split
    classes: list[str]
    mean: list[float]
    std: list[float]
    sha256: str | None

    def mark(self) -> str:
        """SHA-256 over what is known of it without reading it all: sizes, classes, labels, and the
        statistics of some of the images.
        """
        digest = hashlib.sha256()
        for split in (self.train, self.validation):
            digest.update(f"{len(split)} {split.shape}".encode())
            digest.update(split.labels.numpy().tobytes())
        digest.update(f"{self.classes} {self.mean} {self.std}".encode())
        return digest.hexdigest()

    @property
    def resident(self) -> int:
        """Bytes of images that are kept in memory, in each process."""
        splits = (self.train, self.validation)
        return sum(split.resident.nbytes for split in splits if split.resident is not None)


def load(config: Data, *, fingerprint: bool = True) -> ImageData:
    """Both splits of the source that the experiment names.

    Args:
        fingerprint: whether to read a data set that is too large to keep for its hash.
    """
    tables = open_tables(config)
    train_table, validation_table = _two_splits(tables, config.holdout)
    image, label = _columns(train_table, config)
    classes, train_labels, validation_labels = _labels(train_table, validation_table, label)
    shape = _shape(train_table, image, config.size)
    resize = config.size is not None
    most = config.cache * 2**30
    train = keep(Split(train_table, image, train_labels, shape, resize), most)
    validation = keep(Split(validation_table, image, validation_labels, shape, resize), most)
    mean, std = _statistics(train, config)
    resident = train.resident is not None and validation.resident is not None
    sha256 = _fingerprint(train, validation) if fingerprint or resident else None
    return ImageData(train, validation, classes, mean, std, sha256)


def _two_splits(tables: DatasetDict, holdout: float) -> tuple[Dataset, Dataset]:
    if "train" not in tables:
        raise DataError(
            f"the data has no split named train, only {', '.join(tables)}", "rename one of them"
        )
    train = tables["train"]
    if len(train) == 0:
        raise DataError("the data set is empty", "check data.source and data.root")
    for name in _HELD_OUT:
        if name in tables:
            if len(tables[name]) == 0:
                raise DataError(f"the {name} split is empty", "remove it, or fill it")
            return train, tables[name]
    # The rule must not follow the experiment's seed: another seed is another run on the same
    # split, and its accuracy is comparable.
    shuffled = order.permutation(0, 0, len(train))
    count = round(holdout * len(train))
    if not 0 < count < len(train):
        raise DataError(
            f"a holdout of {holdout} leaves {count} of {len(train)} samples for validation",
            "choose another data.holdout",
        )
    held, kept = shuffled[:count].sort().values, shuffled[count:].sort().values
    return train.select(kept.tolist()), train.select(held.tolist())


def _columns(table: Dataset, config: Data) -> tuple[str, str]:
    features = table.features
    images = [name for name, kind in features.items() if isinstance(kind, Image)]
    labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    plain = [name for name, kind in features.items() if isinstance(kind, Value)]
    labels += [name for name in plain if name.startswith("label")]
    for wanted, found, allowed, knob in (
        (config.image_column, images, images, "image_column"),
        (config.label_column, labels, [*features], "label_column"),
    ):
        if (not found) if wanted is None else (wanted not in allowed):
            missing = wanted or knob.replace("_", " ")
            raise DataError(
                f"the data has no {missing}; its columns: {', '.join(features)}",
                f"name one with --data.{knob}",
            )
    return config.image_column or images[0], config.label_column or labels[0]


def _labels(train: Dataset, held: Dataset, column: str) -> tuple[list[str], Tensor, Tensor]:
    kind = train.features[column]
    both = []
    for table in (train, held):
        values = table.select_columns(column).with_format("arrow")[:][column].to_pylist()
        if not all(isinstance(v, int) for v in values):
            raise DataError(f"column {column} holds labels that are no integers", "number them")
        both.append(torch.tensor(values, dtype=torch.int64))
    if isinstance(kind, ClassLabel):
        classes = list(kind.names)
    else:
        classes = [str(n) for n in range(int(both[0].max()) + 1)]
    for name, labels in zip(("training", "validation"), both, strict=True):
        outside = ((labels < 0) | (labels >= len(classes))).nonzero().flatten()
        if len(outside):
            place = int(outside[0])
            raise DataError(
                f"{name} sample {place} has label {int(labels[place])}, outside the"
                f" {len(classes)} classes 0 … {len(classes) - 1} ({len(outside)} such samples)",
                "mend the labels, or name another column with --data.label_column",
            )
    return classes, both[0], both[1]


def _shape(table: Dataset, column: str, size: int | None) -> tuple[int, int, int]:
    try:
        first = table[0][column]
    except Exception as error:
        raise DataError(f"image 0 cannot be read: {error}", "mend or remove it") from error
    channels = 1 if first.mode in ("1", "L", "I;16") else 3
    return (channels, size, size) if size else (channels, first.height, first.width)


def _statistics(split: Split, config: Data) -> tuple[list[float], list[float]]:
    channels = split.shape[0]
    for name, given in (("mean", config.mean), ("std", config.std)):
        if given is not None and len(given) != channels:
            raise DataError(
                f"data.{name} has {len(given)} values for {channels} channels", f"give {channels}"
            )
    if config.mean is not None and config.std is not None:
        return config.mean, config.std
    # Integer sums: the same whatever the order. Ten thousand images are plenty.
    stride = max(1, len(split) // 10_000)
    total = torch.zeros(channels, dtype=torch.int64)
    squares = torch.zeros(channels, dtype=torch.int64)
    pixels = 0
    # Wide integers take eight times the room of the pixels: a few images at a time.
    few = max(1, _AT_ONCE // math.prod(split.shape))
    for chunk in torch.split(torch.arange(0, len(split), stride), few):
        block = split.images(chunk).to(torch.int64)
        total += block.sum((0, 2, 3))
        squares += (block * block).sum((0, 2, 3))
        pixels += block.numel() // channels
    mean = [int(t) / pixels / 255 for t in total]
    spread = [int(q) / pixels / 255**2 - m * m for q, m in zip(squares, mean, strict=True)]
    # Rounded: eight digits say it all and print alike everywhere. A blank channel has no spread.
    std = [round(max(s, 0.0) ** 0.5, 8) or 1.0 for s in spread]
    return config.mean or [round(m, 8) for m in mean], config.std or std


def _fingerprint(*splits: Split) -> str:
    digest = hashlib.sha256()
    for split in splits:
        digest.update(f"{len(split)} {split.shape}\n".encode())
        digest.update(split.labels.numpy().tobytes())
        # By size, and not by where they are kept: data.cache must not change it.
        if split.nbytes <= PIXELS:
            for pixels in decoded(split):
                digest.update(pixels.numpy().tobytes())
        else:
            for row in split.table.cast_column(split.image_column, Image(decode=False)):
                encoded = row[split.image_column]
                digest.update(encoded["bytes"] or Path(encoded["path"]).read_bytes())
    return digest.hexdigest()
