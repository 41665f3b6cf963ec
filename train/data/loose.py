"""Pictures that are of no data set: files by name, each as an evaluation would have it."""

import glob
import math
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from host.errors import DataError, UsageError
from train.config import Config
from train.data import png
from train.data.decode import DARK, BadPicture, Pixels, decode
from train.data.images import Shape, measured_as, prepared, to_shape
from train.data.scan import reading
from train.data.sources.files import Files, files
from train.data.sources.walk import Walk
from train.data.workers import load


@dataclass(frozen=True)
class Loose:
    """Some of the files.

    Attributes:
        start: number of the first one.
        images: uint8 [B, C, H, W] of those that can be used.
        numbers: of these, among all files.
        bad: why the others cannot be used, by number.
        dark: numbers of those with more than eight bits that are nearly black.
    """

    start: int
    images: Tensor
    numbers: list[int]
    bad: dict[int, str]
    dark: list[int]

    def pin_memory(self) -> "Loose":
        """The same in pinned memory (the DataLoader looks for a method of this name)."""
        images = self.images.pin_memory()
        return Loose(self.start, images, self.numbers, self.bad, self.dark)


@dataclass(frozen=True)
class Listed:
    """What was asked for.

    Attributes:
        names: of files, as they were named.
        bad: what lies in folders and cannot be read, and why, by name.
        left_out: files in folders that are no pictures.
    """

    names: list[str]
    bad: dict[str, str]
    left_out: int


def listed(words: Iterable[tuple[str, bool]]) -> Listed:
    """The files that words name: files, folders with all that lies in them, or patterns.

    Args:
        words: each with whether it may be a pattern.

    Raises:
        UsageError: a folder has no pictures, nothing matches a pattern, or a word is empty.
        DataError: a folder cannot be looked into.
    """
    names: list[str] = []
    bad: dict[str, str] = {}
    left_out = 0
    asked = list(words)
    for word, pattern in asked:
        if not word:
            raise UsageError("a name is empty", "name a picture, a folder or a pattern")
        found = [word]
        if pattern and glob.has_magic(word) and not _mode(word):
            found = glob.glob(word, recursive=True)  # noqa: PTH207  (patterns may be absolute)
            found.sort(key=os.fsencode)
            if not found:
                raise UsageError(f"no file matches {word}", "check the pattern")
        for name in found:
            if not stat.S_ISDIR(_mode(name)):
                names.append(name)
                continue
            if "**" in word and len(found) > 1:
                continue  # what lies in it matches by itself
            walk = Walk(Path(name))
            walk.into("")
            if not walk.pictures and not walk.bad and len(found) == 1:
                raise UsageError(f"there are no pictures in {name}", "name another folder")
            names += [str(Path(name, each)) for each in sorted(walk.pictures, key=os.fsencode)]
            bad |= {str(Path(name, each)): why for each, why in walk.bad.items()}
            left_out += len(walk.left_out)
    if asked and not names and not bad:
        raise UsageError("there are no pictures in all that was named", "name others")
    return Listed(names, bad, left_out)


def batches(
    names: Sequence[str], config: Config, shape: Shape, mine: slice, *, pin: bool
) -> Generator[Loose, None, None]:
    """The files in their order, as many at a time as an evaluation takes; of those what `mine`
    picks. Close the generator to end its workers.

    Args:
        shape: (C, H, W) of training images.
        pin: whether images are put into pinned memory, from which a GPU takes them by itself.
    """
    found = _Files(files(Path(), list(names)), config, shape)
    starts = range(0, len(names), config.eval_batch)[mine]
    few = len(names) <= config.eval_batch
    workers = 0 if few else config.data.workers
    with closing(load(found, starts, workers, config.data.prefetch, pin=pin)) as loaded:
        yield from loaded


def _mode(name: str) -> int:
    """What kind of file it is; 0 where that cannot be told, which reading it will say."""
    try:
        return Path(name).stat().st_mode
    except (OSError, ValueError):
        return 0


class _Files(Dataset[Loose | DataError]):
    """The files as a data set whose items are whole batches."""

    def __init__(self, found: Files, config: Config, shape: Shape) -> None:
        self.files, self.config = found, config
        self.scale, self.shape = measured_as(config.data, config.eval, shape)

    def __getitem__(self, start: int) -> Loose:
        numbers, images, dark = [], [], []
        bad: dict[int, str] = {}
        for number in range(start, min(start + self.config.eval_batch, len(self.files))):
            try:
                pixels, peak = self._picture(number)
            except BadPicture as error:
                bad[number] = str(error)
            except (OSError, ValueError) as error:  # ValueError: no name that a file could have
                bad[number] = getattr(error, "strerror", None) or str(error)
            else:
                numbers.append(number)
                images.append(pixels)
                dark += [number] * (peak < DARK)
        stacked = np.stack(images) if images else np.empty((0, *self.shape), np.uint8)
        return Loose(start, torch.from_numpy(stacked), numbers, bad, dark)

    def _picture(self, number: int) -> tuple[Pixels, float]:
        """uint8 [C, H, W], and how bright it is if it says so.

        Raises:
            BadPicture, OSError: it cannot be read, or is not what the model takes.
        """
        encoded = self.files.read(number)
        data = self.config.data
        picture = decode(encoded, reading(data))
        png.check(encoded)
        if picture.peak > 1:
            raise BadPicture(f"it has a value above data.white ({data.white})")
        pixels = prepared(picture.pixels, self.shape[0], data.prepare)
        _, height, width = self.shape
        if self.scale is None and pixels.shape[:2] != (height, width):
            raise BadPicture(
                f"it has {pixels.shape[1]}×{pixels.shape[0]} pixels, and the model takes"
                f" {width}×{height}: it was trained without data.size"
            )
        dark = picture.peak if data.white is None else math.nan
        return to_shape(pixels, self.shape, self.scale), dark
