"""Pictures of noise, for benchmarks: what they cost is what real ones of their shape cost."""

import torch

from host.errors import DataError
from train.config import Data
from train.data.pictures import Arrays, Found, Labelled, halves

_CLASSES, _COUNT, _SIZE = 10, 2048, 32


def splits(config: Data) -> Found:
    """2,048 pictures of ten classes, data.size pixels on a side (32), of data.channels (3).

    Each class has a brightness of its own, so that a model can learn something.

    Raises:
        DataError: the holdout leaves a split empty.
    """
    side, channels = config.size or _SIZE, config.channels or 3
    if config.root is not None:
        raise DataError("synthetic pictures come from no folder, but data.root is set", "drop it")
    labels = torch.arange(_COUNT) % _CLASSES
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(
        0, 56, (_COUNT, channels, side, side), dtype=torch.uint8, generator=generator
    )
    pixels = noise + (20 * labels).to(torch.uint8)[:, None, None, None]
    train, held = halves(Labelled(Arrays(pixels), labels), config.holdout)
    return Found(train, held, [str(n) for n in range(_CLASSES)])
