"""RandAugment, TrivialAugment and AutoAugment's policy for CIFAR: which operations a sample gets.

Operations, their ranges and how often they are drawn are torchvision's; each draw follows from the
sample's key.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from train.config import Augment
from train.data.vary import operations
from train.data.vary.operations import ONE
from train.lanes import order

_FIRST = 64  # number of the first draw; `windows` has those before it
_BINS = 31  # strengths of RandAugment and TrivialAugment
_SHARE = 150 / 331  # of a side, the farthest that AutoAugment and RandAugment move an image


@dataclass(frozen=True)
class Operation:
    """An operation with its strengths.

    Attributes:
        apply: from uint8 [B, C, H, W] and a row of `table` for each to uint8 [B, C, H, W].
        table: int64 [2 × bins, …]: the strengths, and behind them those to the other side.
    """

    apply: Callable[[Tensor, Tensor], Tensor]
    table: Tensor


# Of AutoAugment: operation, chance in tenths and strength of the first, and of the second.
_CIFAR = (
    (("invert", 1, 0), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate_x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear_y", 5, 8), ("translate_y", 7, 9)),
    (("autocontrast", 5, 0), ("equalize", 9, 0)),
    (("shear_y", 2, 7), ("posterize", 3, 7)),
    (("saturation", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6, 0), ("equalize", 5, 0)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("saturation", 7, 7), ("translate_x", 5, 8)),
    (("equalize", 3, 0), ("autocontrast", 4, 0)),
    (("translate_y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("saturation", 2, 8)),
    (("solarize", 5, 2), ("invert", 0, 0)),
    (("equalize", 2, 0), ("autocontrast", 6, 0)),
    (("equalize", 2, 0), ("equalize", 6, 0)),
    (("saturation", 9, 9), ("equalize", 6, 0)),
    (("autocontrast", 8, 0), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("saturation", 7, 0)),
    (("solarize", 4, 5), ("autocontrast", 9, 0)),
    (("translate_y", 9, 9), ("translate_y", 7, 9)),
    (("autocontrast", 9, 0), ("solarize", 8, 3)),
    (("equalize", 8, 0), ("invert", 1, 0)),
    (("translate_y", 7, 9), ("autocontrast", 9, 0)),
)


def apply(images: Tensor, keys: Tensor, config: Augment) -> Tensor:
    """uint8 [B, C, H, W], each changed as the experiment's policy and its key say.

    Args:
        keys: the samples', int64 [B].
    """
    known = _operations(config.policy or "", images.shape[2], images.shape[3])
    for layer, (which, row) in enumerate(_draws(keys, config, list(known))):
        assert layer < 16  # draws of a layer above would be another part's
        images = _each_its_own(images, which, row, list(known.values()))
    return images


def _draws(keys: Tensor, config: Augment, names: list[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each operation after another: its number, and the row of its table; int64 [B] each."""
    if config.policy == "autoaugment":
        yield from _autoaugment(keys, names)
        return
    for layer in range(config.policy_operations if config.policy == "randaugment" else 1):
        first = _FIRST + 3 * layer
        which, side = order.randint(keys, first, len(names)), order.randint(keys, first + 1, 2)
        strength: int | Tensor = config.policy_strength
        if config.policy == "trivialaugment":
            strength = order.randint(keys, first + 2, _BINS)
        yield which, strength + _BINS * side


def _autoaugment(keys: Tensor, names: list[str]) -> Iterator[tuple[Tensor, Tensor]]:
    table = torch.tensor(
        [[(names.index(name), *numbers) for name, *numbers in both] for both in _CIFAR]
    ).to(keys.device)
    chosen = table[order.randint(keys, _FIRST, len(_CIFAR))]
    for layer in range(2):
        which, tenths, strength = chosen[:, layer].unbind(1)
        done = order.randint(keys, _FIRST + 1 + 2 * layer, 10) < tenths
        side = order.randint(keys, _FIRST + 2 + 2 * layer, 2)
        yield which * done, strength + 10 * side  # the first operation changes nothing


def _each_its_own(images: Tensor, which: Tensor, row: Tensor, known: list[Operation]) -> Tensor:
    """Each image by the operation whose number is its own, those of a number together."""
    sorted_ = which.argsort(stable=True)
    counts = which.bincount(minlength=len(known)).tolist()
    out = torch.empty_like(images)
    for places, operation in zip(sorted_.split(counts), known, strict=True):
        if len(places):
            strength = operation.table.to(images.device)[row[places]]
            out[places] = operation.apply(images[places], strength)
    return out


@lru_cache
def _operations(policy: str, height: int, width: int) -> dict[str, Operation]:
    """By name, that which changes nothing first."""
    if policy == "trivialaugment":
        return _table(_BINS, colour=0.99, shear=0.99, far=(32, 32), turn=135, bits=6)
    far = (_SHARE * width, _SHARE * height)
    bins = _BINS if policy == "randaugment" else 10
    found = _table(bins, colour=0.9, shear=0.3, far=far, turn=30, bits=4)
    if policy == "autoaugment":
        nothing = torch.zeros(2 * bins, dtype=torch.int64)
        found["invert"] = Operation(lambda images, _: ~images, nothing)
    return found


def _table(
    bins: int, *, colour: float, shear: float, far: tuple[float, float], turn: float, bits: float
) -> dict[str, Operation]:
    shares = [n / (bins - 1) for n in range(bins)]
    both = [*shares, *(-share for share in shares)]
    colours = torch.tensor([round((1 + colour * share) * ONE) for share in both])
    shears = [round(shear * share * ONE) for share in both]
    kept = [8 - round(bits * share) for share in shares]
    thresholds = [-(-255 * (bins - 1 - n) // (bins - 1)) for n in range(bins)]  # rounded up
    nothing = torch.zeros(2 * bins, dtype=torch.int64)
    whole = torch.tensor
    return {
        "identity": Operation(lambda images, _: images, nothing),
        "shear_x": _moved(whole([[ONE, m, 0, 0, ONE, 0] for m in shears])),
        "shear_y": _moved(whole([[ONE, 0, 0, m, ONE, 0] for m in shears])),
        "translate_x": _moved(whole([[ONE, 0, -int(far[0] * m) * ONE, 0, ONE, 0] for m in both])),
        "translate_y": _moved(whole([[ONE, 0, 0, 0, ONE, -int(far[1] * m) * ONE] for m in both])),
        "rotate": Operation(_rotated, whole([_cosine_and_sine(turn * m) for m in both])),
        "brightness": Operation(operations.brightness, colours),
        "saturation": Operation(operations.saturation, colours),
        "contrast": Operation(operations.contrast, colours),
        "sharpness": Operation(operations.sharpness, colours),
        "posterize": Operation(operations.posterize, whole(2 * kept)),
        "solarize": Operation(operations.solarize, whole(2 * thresholds)),
        "autocontrast": Operation(lambda images, _: operations.autocontrast(images), nothing),
        "equalize": Operation(lambda images, _: operations.equalize(images), nothing),
    }


def _moved(table: Tensor) -> Operation:
    return Operation(operations.affine, table)


def _cosine_and_sine(degrees: float) -> tuple[int, int]:
    angle = math.radians(degrees)
    return round(math.cos(angle) * ONE), round(math.sin(angle) * ONE)


def _rotated(images: Tensor, rows: Tensor) -> Tensor:
    """Around the middle, counter-clockwise."""
    height, width = images.shape[2:]
    cosine, sine = rows.unbind(1)
    # Half of a whole number of pixels: exact in fixed-point numbers.
    across = ((ONE - cosine) * width + sine * height) // 2
    down = ((ONE - cosine) * height - sine * width) // 2
    return operations.affine(images, torch.stack([cosine, -sine, across, sine, cosine, down], 1))
