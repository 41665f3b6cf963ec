"""Brightness, contrast, saturation and hue varied within ranges, in any order; and grey images."""

from itertools import permutations

import torch
from torch import Tensor

from train.config import Augment
from train.data.vary import operations
from train.data.vary.operations import ONE
from train.lanes import order

_FIRST = 128  # number of the first draw; `policies` has those before it
_ORDERS = torch.tensor(list(permutations(range(4))))


def jitter(images: Tensor, keys: Tensor, config: Augment) -> Tensor:
    """uint8 [B, C, H, W], each changed by its key, int64 [B].

    As torchvision's ColorJitter: a factor is uniform between 1 - most and 1 + most, not below 0.
    """
    most = (config.brightness, config.contrast, config.saturation, config.hue)
    apply = (
        operations.brightness, operations.contrast, operations.saturation, operations.hue
    )  # fmt: skip
    places = _ORDERS.to(images.device)[order.randint(keys, _FIRST, len(_ORDERS))]
    factors = []
    for number, range_ in enumerate(most):
        far = round(range_ * ONE)
        # A hue is turned either way; the others are factors.
        low, high = (-far, far) if number == 3 else (max(0, ONE - far), ONE + far)
        factors.append(low + order.randint(keys, _FIRST + 1 + number, high - low + 1))
    wanted = [number for number, range_ in enumerate(most) if range_]
    if len(wanted) == 1:  # in any order it is the same
        return apply[wanted[0]](images, factors[wanted[0]])
    out = images.clone()
    for turn in range(4):
        for number in wanted:
            mine = (places[:, turn] == number).nonzero()[:, 0]
            if len(mine):
                out[mine] = apply[number](out[mine], factors[number][mine])
    return out


def greyed(images: Tensor, keys: Tensor, chance: float) -> Tensor:
    """Some of them without colour, in as many channels."""
    chosen = order.randint(keys, _FIRST + 5, ONE) < round(chance * ONE)
    return torch.where(chosen[:, None, None, None], operations.grey(images), images)
