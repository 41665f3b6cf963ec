"""Parts of images that are set to the mean: a square of one size, or a rectangle of any."""

import math

import torch
from torch import Tensor

from train.lanes import order

_FIRST = 144  # number of the first draw; `jitter` has those before it
_TRIES = 10
_LEAST, _MOST = 0.02, 0.33  # of an image's area
_RATIOS = 0.3, 3.3  # height to width
_STEPS = 1 << 10
_FINE = 1 << 24
_ONE = 1 << 16
# Square roots of shares of the area and of ratios, in 65,536ths: whole numbers on any device.
_SIDES = torch.tensor(
    [
        round(math.sqrt(_LEAST + (_MOST - _LEAST) * (place + 0.5) / _STEPS) * _ONE)
        for place in range(_STEPS)
    ]
)
_ROOTS = torch.tensor(
    [
        round(math.sqrt(_RATIOS[0] * (_RATIOS[1] / _RATIOS[0]) ** (place / (_STEPS - 1))) * _ONE)
        for place in range(_STEPS)
    ]
)


def outside_squares(images: Tensor, keys: Tensor, side: int) -> Tensor:
    """float32 [B, 1, H, W]: 0 in each sample's square, 1 elsewhere. Squares may stick out."""
    starts = [
        order.randint(keys, draw, images.shape[axis]) - side // 2 for axis, draw in ((2, 3), (3, 4))
    ]
    return _outside(images, starts, [torch.full_like(keys, side)] * 2)


def outside_rectangles(images: Tensor, keys: Tensor, chance: float) -> Tensor:
    """float32 [B, 1, H, W]: 0 in the rectangle of those that get one, 1 elsewhere.

    As torchvision's RandomErasing: a share of the area between 2 and 33 %, uniform, and a ratio of
    the sides between 0.3 and 3.3, of which the logarithm is; ten tries for one that fits.
    """
    height, width = images.shape[2:]
    chosen = order.randint(keys, _FIRST, _FINE) < round(chance * _FINE)
    sides, roots = _SIDES.to(images.device), _ROOTS.to(images.device)
    whole = math.isqrt(height * width * _ONE * _ONE)  # the side of a square of its area
    found = torch.zeros(4, len(keys), dtype=torch.int64, device=images.device)
    for attempt in range(_TRIES):
        first = _FIRST + 1 + 4 * attempt
        side = whole * sides[order.randint(keys, first, _STEPS)] // _ONE
        root = roots[order.randint(keys, first + 1, _STEPS)]
        high = (side * root // _ONE + _ONE // 2) // _ONE
        wide = (side * _ONE // root + _ONE // 2) // _ONE
        fits = chosen & (found[2] == 0) & (high < height) & (wide < width)
        fits &= (high > 0) & (wide > 0)
        room = [(limit - size).clamp(min=0) + 1 for limit, size in ((height, high), (width, wide))]
        top, left = (order.randint(keys, first + 2 + n, room[n]) for n in (0, 1))
        found = torch.where(fits, torch.stack([top, left, high, wide]), found)
    return _outside(images, [*found[:2]], [*found[2:]])


def _outside(images: Tensor, starts: list[Tensor], sizes: list[Tensor]) -> Tensor:
    inside = []
    for axis in (0, 1):
        places = torch.arange(images.shape[2 + axis], device=images.device)[None]
        start = starts[axis][:, None]
        inside.append((places >= start) & (places < start + sizes[axis][:, None]))
    both = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return (~both).to(torch.float32)
