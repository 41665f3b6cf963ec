"""The training and the validation split of a source: shape, statistics, fingerprint.

Raises DataError throughout, with what is wrong and how to mend it.
"""

import hashlib
import math
from dataclasses import dataclass

import torch

from host.errors import DataError
from train.config import Data
from train.data import digits
from train.data.images import Split, decoded, keep
from train.data.pictures import Labelled, Pictures

PIXELS = 1 << 30
"""Bytes: the fingerprint of a split is of its pixels up to here, and of encoded files above."""
_AT_ONCE = 1 << 21  # pixels


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
    if config.source == "digits":
        found = digits.splits(config)
    else:
        from train.data import tables  # `datasets` takes longer to load than digits do to train

        found = tables.splits(config)
    labelled, held, classes = found
    shape = _shape(labelled.pictures, config.size)
    train, validation = (_split(each, shape, config) for each in (labelled, held))
    mean, std = _statistics(train, config)
    resident = train.resident is not None and validation.resident is not None
    sha256 = _fingerprint(train, validation) if fingerprint or resident else None
    return ImageData(train, validation, classes, mean, std, sha256)


def _split(labelled: Labelled, shape: tuple[int, int, int], config: Data) -> Split:
    split = Split(labelled.pictures, labelled.labels, shape, resize=config.size is not None)
    return keep(split, config.cache * 2**30)


def _shape(pictures: Pictures, size: int | None) -> tuple[int, int, int]:
    try:
        (first,) = pictures.decoded([0])
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
            for encoded in split.pictures.encoded():
                digest.update(encoded)
    return digest.hexdigest()
