"""Variation of training images, in batches, on whatever device they are on.

What is drawn depends on each sample's key alone (see `train.lanes.order`): neither the worker, nor
the process, nor the neighbours in the batch have a say in the bytes that enter the model.
"""

import torch
from torch import Tensor
from torch.nn import functional

from train.config import Augment
from train.lanes import order


class Augmenter:
    """uint8 images in, normalised float32 images out.

    Args:
        config: what to vary.
        mean, std: of each channel, pixels from 0 to 1.
    """

    def __init__(
        self, config: Augment, mean: list[float], std: list[float], device: torch.device
    ) -> None:
        self.config = config
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)[:, None, None]
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)[
            :, None, None
        ]

    def normalize(self, images: Tensor) -> Tensor:
        """float32 [B, C, H, W] of zero mean and unit deviation, from uint8 [B, C, H, W]."""
        return images.to(torch.float32) * self.scale + self.shift

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augment uint8 [B, C, H, W] by the samples' keys, int64 [B]; float32 [B, C, H, W]."""
        if self.config.pad:
            images = _crop(images, keys, self.config.pad)
        if self.config.flip:
            mirror = order.randint(keys, 2, 2).bool()[:, None, None, None]
            images = torch.where(mirror, images.flip(-1), images)
        floats = self.normalize(images)
        if self.config.cutout:
            floats = floats * _outside(images, keys, self.config.cutout)
        return floats


def _crop(images: Tensor, keys: Tensor, pad: int) -> Tensor:
    batch, _, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, 2p+1, 2p+1, H, W], a view
    top, left = (order.randint(keys, draw, 2 * pad + 1) for draw in (0, 1))
    return windows[torch.arange(batch, device=images.device), :, top, left]


def _outside(images: Tensor, keys: Tensor, side: int) -> Tensor:
    """float32 [B, 1, H, W]: 0 in each sample's square, 1 elsewhere. Squares may stick out."""
    inside = torch.ones((), dtype=torch.bool, device=images.device)
    for axis, draw in ((2, 3), (3, 4)):
        length = images.shape[axis]
        start = order.randint(keys, draw, length)[:, None] - side // 2
        places = torch.arange(length, device=images.device)[None]
        span = (places >= start) & (places < start + side)
        inside = inside & (span[:, None, :, None] if axis == 2 else span[:, None, None, :])
    return (~inside).to(torch.float32)
