"""Pictures as they are stored, with their classes, and which of them are held out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from host.errors import DataError, UsageError
from train.config import Data
from train.lanes import order

ALL = 1.0
"""A holdout that holds nothing back: what is measured is all there is."""


class Encoded(Protocol):
    """Files of pictures, by number."""

    def __len__(self) -> int: ...

    def name(self, number: int) -> str:
        """What a user knows it by: a file's name, or a row's place."""

    def read(self, number: int) -> bytes:
        """Its bytes. Raises OSError."""

    def state(self) -> str | None:
        """Names them all as they are on this machine: other bytes, other state. None where that
        cannot be told without reading them.
        """


@dataclass(frozen=True)
class Arrays:
    """Pictures that are pixels already: uint8 [N, C, H, W].

    Attributes:
        numbers: of each in its source, int64 [N]; None where they are all of it.
    """

    pixels: Tensor
    numbers: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, number: int) -> str:
        """What a user knows it by."""
        return f"sample {number if self.numbers is None else int(self.numbers[number])}"


@dataclass(frozen=True)
class Labelled:
    """Pictures and the number of each one's class, int64 [N]."""

    pictures: Encoded | Arrays
    labels: Tensor


@dataclass(frozen=True)
class Found:
    """What a source holds.

    Attributes:
        classes: their names, in label order.
        left_out: files that are no data, and why, by name.
        bad: pictures that are known to be damaged before they are read, and why, by name.
        both: whether the source has a validation split of its own.
        doubts: what a person should look at.
    """

    train: Labelled
    validation: Labelled
    classes: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    both: bool = False
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chosen:
    """Some of the files, in an order of their own."""

    files: Encoded
    numbers: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, number: int) -> str:
        """What a user knows it by."""
        return self.files.name(int(self.numbers[number]))

    def read(self, number: int) -> bytes:
        """Its bytes. Raises OSError."""
        return self.files.read(int(self.numbers[number]))

    def state(self) -> str | None:
        """Names them all as they are on this machine."""
        whole = self.files.state()
        if whole is None:
            return None
        return hashlib.sha256(whole.encode() + self.numbers.numpy().tobytes()).hexdigest()


def choose(labelled: Labelled, numbers: Tensor) -> Labelled:
    """Those with these numbers, int64 [M]."""
    pictures, labels = labelled.pictures, labelled.labels[numbers]
    if isinstance(pictures, Arrays):
        known = numbers if pictures.numbers is None else pictures.numbers[numbers]
        return Labelled(Arrays(pictures.pixels[numbers], known), labels)
    if isinstance(pictures, Chosen):
        return Labelled(Chosen(pictures.files, pictures.numbers[numbers]), labels)
    return Labelled(Chosen(pictures, numbers), labels)


def halves(labelled: Labelled, holdout: float) -> tuple[Labelled, Labelled]:
    """Those to train on, and the share of them that is held out for validation, each in order.

    The rule does not follow the experiment's seed: another seed is another run on the same split,
    and its accuracy is comparable. Of a class that would be held out whole, the first stays in
    training: nobody learns it otherwise. Of a holdout of ALL, both are all of them.

    Raises:
        DataError: one of them is empty.
    """
    if holdout == ALL:
        return labelled, labelled
    count = len(labelled.labels)
    shuffled = order.permutation(0, 0, count)
    held = round(holdout * count)
    if not 0 < held < count:
        raise DataError(
            f"a holdout of {holdout} leaves {held} of {count} samples for validation",
            "choose another data.holdout",
        )
    kept, out = shuffled[held:].sort().values, shuffled[:held].sort().values
    lost = {*labelled.labels[out].tolist()} - {*labelled.labels[kept].tolist()}
    if lost:
        firsts = torch.stack([out[labelled.labels[out] == name][0] for name in sorted(lost)])
        kept, out = torch.cat([kept, firsts]).sort().values, out[~torch.isin(out, firsts)]
        if not len(out):
            classes = len(labelled.labels.unique())
            raise DataError(
                f"a holdout of {holdout} leaves 0 of {count} samples for validation: there are"
                f" {classes:,} classes, of {count / classes:.1f} samples each",
                "take more pictures of each, or a validation split of your own; where the labels"
                " are measurements, or names of the pictures, name another column: classes are"
                " learned (--data.label_column)",
            )
    return choose(labelled, kept), choose(labelled, out)


def two_splits(splits: Sequence[Labelled], config: Data) -> tuple[Labelled, Labelled]:
    """Training and validation split of a source that has both, or one to hold some out of.

    Raises:
        DataError: `data.holdout` leaves one of them empty.
    """
    if len(splits) == 1:
        return halves(splits[0], config.holdout)
    train, held = splits
    return train, held


def no_columns(config: Data, what: str) -> None:
    """Refuse the names of columns where there are none.

    Raises:
        UsageError: one is set.
    """
    told = [knob for knob in ("image_column", "label_column") if getattr(config, knob) is not None]
    if told:
        raise UsageError(
            f"data.{told[0]} is set, and {what} have no columns",
            f"take it away: {' '.join(f'--data.{knob} null' for knob in told)}",
        )
