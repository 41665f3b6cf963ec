"""Pictures as they are stored, with their classes, and which of them are held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from PIL.Image import Image
from torch import Tensor

from host.errors import DataError
from train.lanes import order


class Pictures(Protocol):
    """Where pictures are read from, by number."""

    def __len__(self) -> int: ...

    def decoded(self, numbers: list[int]) -> list[Image]:
        """Those with these numbers. Raises whatever a decoder makes of damaged bytes."""

    def encoded(self) -> Iterator[bytes]:
        """The bytes of each, as stored."""


@dataclass(frozen=True)
class Labelled:
    """Pictures and the number of each one's class, int64 [N]."""

    pictures: Pictures
    labels: Tensor


def kept_and_held(count: int, holdout: float) -> tuple[Tensor, Tensor]:
    """Numbers of `count` samples to train on, and of those held out for validation, each in order.

    The rule does not follow the experiment's seed: another seed is another run on the same split,
    and its accuracy is comparable.

    Raises:
        DataError: one of them is empty.
    """
    shuffled = order.permutation(0, 0, count)
    held = round(holdout * count)
    if not 0 < held < count:
        raise DataError(
            f"a holdout of {holdout} leaves {held} of {count} samples for validation",
            "choose another data.holdout",
        )
    return shuffled[held:].sort().values, shuffled[:held].sort().values
