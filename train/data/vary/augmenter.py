"""Variation of training images, in batches, on whatever device they are on.

What is drawn depends on each sample's key alone (see `train.lanes.order`): neither the worker, nor
the process, nor the neighbours in the batch have a say in the bytes that enter the model.
"""

import torch
from torch import Tensor
from torch.nn import functional

from train.config import Augment
from train.data.loader import Batch
from train.data.vary import erasing, policies
from train.data.vary.jitter import greyed, jitter
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

    def move(self, images: Tensor, keys: Tensor) -> Tensor:
        """What is done to bytes, uint8 [B, C, H, W], by their keys."""
        if self.config.pad:
            images = _crop(images, keys, self.config.pad)
        if self.config.flip:
            images = _mirror(images, order.randint(keys, 2, 2))
        if self.config.policy:
            images = policies.apply(images, keys, self.config)
        if self.config.jitters:
            images = jitter(images, keys, self.config)
        if self.config.grey:
            images = greyed(images, keys, self.config.grey)
        return images

    def normalize(self, images: Tensor) -> Tensor:
        """float32 [B, C, H, W] of zero mean and unit deviation, from uint8 [B, C, H, W]."""
        # In place: large tensors that come and go cost more than the arithmetic.
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augment uint8 [B, C, H, W] by the samples' keys, int64 [B]; float32 [B, C, H, W]."""
        floats = self.normalize(self.move(images, keys))
        if self.config.cutout:
            floats.mul_(erasing.outside_squares(images, keys, self.config.cutout))
        if self.config.erasing:
            floats.mul_(erasing.outside_rectangles(images, keys, self.config.erasing))
        return floats

    def mix(self, lane: Batch) -> Batch:
        """A lane whose images are varied, with each sample's partner in it."""
        if not (self.config.mixup or self.config.cutmix):
            return lane
        from train.data.vary.mixing import mixed  # whose table of quantiles needs SciPy

        return mixed(lane, self.config)


def _crop(images: Tensor, keys: Tensor, pad: int) -> Tensor:
    batch, channels, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    top, left = (order.randint(keys, draw, 2 * pad + 1) for draw in (0, 1))
    # Each row of a window is a run of bytes: where each begins, int64 [B, C, H].
    each, plane, row, _ = padded.stride()
    device = images.device
    starts = (torch.arange(batch, device=device) * each + top * row + left)[:, None, None]
    starts = starts + torch.arange(channels, device=device)[:, None] * plane
    starts = starts + torch.arange(height, device=device) * row
    flat = padded.view(-1)
    runs = flat.as_strided((len(flat) - width + 1, width), (1, 1))
    return runs.index_select(0, starts.view(-1)).view_as(images)


def _mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Those with a one in `chosen`, int64 [B], left to right; faster than `where`."""
    mask = (chosen * 255).to(torch.uint8)[:, None, None, None]
    return images ^ ((images ^ images.flip(-1)) & mask)
