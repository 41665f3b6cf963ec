"""Mean and standard deviation of each channel of the training images.

Raises DataError where there is nothing to see in one.
"""

import hashlib
import math
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from host.errors import DataError
from train.config import Data
from train.data import cache
from train.data.images import Split
from train.data.store import CODE

_AT_ONCE = 1 << 21  # pixels
_CODE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def statistics(split: Split, config: Data, sha256: str) -> tuple[list[float], list[float]]:
    """Pixels from 0 to 1; as the experiment gives them, or measured.

    Args:
        sha256: of the data.
    """
    channels = split.shape[0]
    for name, given in (("mean", config.mean), ("std", config.std)):
        if given is not None and len(given) != channels:
            raise DataError(
                f"data.{name} has {len(given)} values for {channels} channels", f"give {channels}"
            )
    if config.mean is not None and config.std is not None:
        return config.mean, config.std
    mean, std = _kept(split, config, sha256)
    blank = [place for place, each in enumerate(std) if each == 0]
    if blank and config.std is None:
        raise DataError(
            f"channel {blank[0]} has the same value in all training pictures,"
            f" {round(255 * mean[blank[0]])} of 255, so there is nothing to see in it",
            "look at the pictures (a shape in the alpha channel alone may need --data.background"
            " 0); if it is meant so, give --data.mean and --data.std",
        )
    return config.mean or mean, config.std or std


def _kept(split: Split, config: Data, sha256: str) -> tuple[list[float], list[float]]:
    """Mean and deviation, from the cache where the pictures would have to be decoded for it."""
    if split.resident is not None:
        return _measured(split)
    about = f"{CODE} {_CODE} {sha256} {split.shape} {split.scale} {split.prepare} {split.reading}"
    about += f" {version('pillow')} {version('simplejpeg')}"
    key = f"statistics-{hashlib.sha256(about.encode()).hexdigest()[:32]}"
    root = cache.folder(config)
    known = cache.read(root, key)
    if known is None:
        with cache.held(root, key):
            known = cache.read(root, key)
            if known is None:
                mean, std = _measured(split)
                cache.write(root, key, {"mean": np.array(mean), "std": np.array(std)})
                return mean, std
    return known["mean"].tolist(), known["std"].tolist()


def _measured(split: Split) -> tuple[list[float], list[float]]:
    channels = split.shape[0]
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
    # Rounded: eight digits say it all and print alike everywhere.
    return [round(m, 8) for m in mean], [round(max(s, 0.0) ** 0.5, 8) for s in spread]
