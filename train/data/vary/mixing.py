"""Mixup and CutMix: each sample of a lane with a share of the one behind it.

A lane holds the same samples in the same order on any number of processes, so partners are the
same as well. How much is taken follows from the sample's own key.
"""

import math
from dataclasses import replace
from functools import lru_cache

import torch
from scipy.special import betaincinv
from torch import Tensor

from train.config import Augment
from train.data.loader import Batch
from train.lanes import order

_FIRST = 192  # number of the first draw; `erasing` has those before it
_STEPS = 1 << 14
_ONE = 1 << 16  # shares are kept in 65,536ths, which float32 holds exactly


def mixed(lane: Batch, config: Augment) -> Batch:
    """The lane, float32 [B, C, H, W], with images mixed and the shares of both labels."""
    keys, images = lane.keys, lane.images
    if len(keys) < 2:
        return lane  # nobody to mix with
    cut = torch.zeros_like(keys, dtype=torch.bool)
    if config.cutmix:
        cut = order.randint(keys, _FIRST, 2) == 1 if config.mixup else ~cut
    partners = images.roll(-1, 0)
    shares = torch.where(cut, _beta(keys, config.cutmix), _beta(keys, config.mixup))
    inside = _box(images, keys, shares) & cut[:, None, None, None]
    # Of a window that sticks out, less is taken than was drawn.
    area = images.shape[2] * images.shape[3]
    left = area - inside.flatten(1).sum(1)
    shares = torch.where(cut, left * _ONE // area, shares)
    own = (shares.float() / _ONE)[:, None, None, None]
    blend = images.mul(own).add_(partners.mul(1 - own))
    whole = torch.where(inside, partners, images)
    return replace(
        lane,
        images=torch.where(cut[:, None, None, None], whole, blend),
        partners=lane.labels.roll(-1, 0),
        shares=own.flatten(),
    )


def _beta(keys: Tensor, alpha: float) -> Tensor:
    """Of Beta(alpha, alpha), in 65,536ths: int64 [B]; 1 where alpha is 0."""
    if not alpha:
        return torch.full_like(keys, _ONE)
    return _quantiles(alpha).to(keys.device)[order.randint(keys, _FIRST + 1, _STEPS)]


@lru_cache
def _quantiles(alpha: float) -> Tensor:
    places = (torch.arange(_STEPS, dtype=torch.float64) + 0.5) / _STEPS
    found = betaincinv(alpha, alpha, places.numpy())
    # Rounded, so that a machine's last bit does not show.
    return torch.from_numpy(found * _ONE).round().long()


@lru_cache
def _roots() -> Tensor:
    """The square root of each share, in 65,536ths, rounded down: a device's own may differ."""
    return torch.tensor([math.isqrt(share * _ONE) for share in range(_ONE + 1)])


def _box(images: Tensor, keys: Tensor, shares: Tensor) -> Tensor:
    """Bool [B, 1, H, W]: a window of 1 - share of the area, its middle anywhere in the image."""
    side = _roots().to(keys.device)[_ONE - shares]
    spans = []
    for axis in (2, 3):
        length = images.shape[axis]
        size = (length * side // _ONE)[:, None]
        start = order.randint(keys, _FIRST + axis, length)[:, None] - size // 2
        places = torch.arange(length, device=images.device)[None]
        spans.append((places >= start) & (places < start + size))
    return spans[0][:, None, :, None] & spans[1][:, None, None, :]
