"""Random windows of pictures, of a share of their area and a shape, scaled to one size.

The distribution is that of Inception's crops, as torchvision draws them (RandomResizedCrop): area
uniform in a range, logarithm of the aspect ratio uniform in ±log(4/3), ten tries, then the middle.
Each draw follows from the sample's key. Sums and square roots are those of IEEE 754, and what has
no such rule stands in a table of rounded numbers: any CPU draws alike.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from train.data.decode import Pixels
from train.lanes import order

_TRIES = 10
_FIRST = 16  # number of the first draw; augment.py has those before it
_STEPS = 1 << 10
_WIDEST = 4 / 3
# Square roots of the ratios of width to height.
_ROOTS = np.array(
    [
        round(math.exp((place / (_STEPS - 1) - 0.5) * math.log(_WIDEST)), 9)
        for place in range(_STEPS)
    ]
)
_FINE = 1 << 24

Whole = np.ndarray[Any, np.dtype[np.int64]]


def draw(keys: Tensor, sizes: Whole, area: tuple[float, float]) -> Whole:
    """A window of each picture: top, left, height and width, int64 [B, 4].

    Args:
        keys: the samples', int64 [B].
        sizes: heights and widths of their pictures, int64 [B, 2].
        area: least and most of a picture's area, as shares.
    """
    least, most = area
    heights, widths = sizes[:, 0], sizes[:, 1]
    # Until a try fits: the middle, as wide or as high as the ratios allow.
    found = np.empty((len(sizes), 4), np.int64)
    found[:, 2] = np.minimum(heights, np.floor(widths * _WIDEST + 0.5))
    found[:, 3] = np.minimum(widths, np.floor(heights * _WIDEST + 0.5))
    found[:, :2] = (sizes - found[:, 2:]) // 2
    open_ = np.ones(len(sizes), np.bool_)
    for attempt in range(_TRIES):
        if not open_.any():
            break
        first = _FIRST + 4 * attempt
        share, shape = (
            order.randint(keys, first + n, high).numpy() for n, high in ((0, _FINE), (1, _STEPS))
        )
        share = least + (most - least) * ((share + 0.5) / _FINE)
        side, root = np.sqrt(heights * widths * share), _ROOTS[shape]
        high = np.floor(side / root + 0.5).astype(np.int64)
        wide = np.floor(side * root + 0.5).astype(np.int64)
        fits = open_ & (high > 0) & (wide > 0) & (high <= heights) & (wide <= widths)
        room = np.stack([heights - high, widths - wide]).clip(0) + 1
        top, left = (
            order.randint(keys, first + 2 + n, torch.from_numpy(room[n])).numpy() for n in (0, 1)
        )
        found[fits] = np.stack([top, left, high, wide], axis=1)[fits]
        open_ &= ~fits
    return found


def cut(pixels: Pixels, window: Whole, size: int) -> Tensor:
    """uint8 [C, size, size] of a window of uint8 [H, W, C], without aliasing."""
    top, left, high, wide = window.tolist()
    part = torch.from_numpy(pixels[top : top + high, left : left + wide]).permute(2, 0, 1)[None]
    return functional.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
