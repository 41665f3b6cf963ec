"""Images of a split: decoded once and kept where they are few, else batch by batch."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from host.errors import DataError
from train.config import Data, Eval
from train.data import windows
from train.data.decode import BadPicture, Pixels, Reading, decode, to_channels
from train.data.pictures import Arrays, Encoded
from train.data.scaled import Scaled, as_picture, as_pixels, middle, shrink

Shape = tuple[int, int, int]  # C, H, W
_AT_ONCE = 16  # pictures in memory that are to be cut


@dataclass(frozen=True)
class Split:
    """Images with their classes.

    Attributes:
        pictures: what the images are made from.
        labels: int64 [N].
        shape: (C, H, W) of each image.
        scale: what the shorter side of each is scaled to, before its middle of that shape is
            cropped; None: pictures have that shape.
        reading: how they are decoded.
        digests: SHA-256 of their files' bytes as they were looked at, uint8 [N, 32]; None where
            there are no files.
        prepare: what the shorter side of each is scaled to first, where it is longer.
        crop: least and most of a picture's area, where random windows of it are wanted.
        resident: uint8 [N, C, H, W] where the split is small enough to keep, else None; in memory,
            or on a device.
        mapped: whether that is a file's, whose memory all processes share.
    """

    pictures: Encoded | Arrays | Scaled
    labels: Tensor
    shape: Shape
    scale: int | None
    reading: Reading
    digests: np.ndarray[Any, Any] | None = None
    prepare: int | None = None
    crop: tuple[float, float] | None = None
    resident: Tensor | None = None
    mapped: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of all its images, decoded."""
        return len(self) * int(np.prod(self.shape))

    def on(self, device: torch.device) -> "Split":
        """The same, its resident images in the device's memory."""
        assert self.resident is not None
        return replace(self, resident=self.resident.to(device), mapped=False)

    def images(
        self, numbers: Tensor, keys: Tensor | None = None, size: int | None = None
    ) -> Tensor:
        """uint8 [B, C, H, W] of the samples with these numbers, int64 [B]; where they are resident.

        Args:
            keys: the samples', int64 [B], where they may be varied.
            size: H and W of random windows, where it is not that of `shape`.

        Raises:
            DataError: a picture cannot be read any more, or is another one now.
        """
        if self.resident is not None:
            return self.resident.index_select(0, sent(numbers, self.resident.device))
        if self.crop is not None and keys is not None:
            return self._windows(numbers, keys, self.crop, size or self.shape[1])
        out = torch.empty((len(numbers), *self.shape), dtype=torch.uint8)
        pixels = out.numpy()
        for place, number in enumerate(numbers.tolist()):
            image = to_shape(self.pixels(number), self.shape, self.scale)
            pixels[place] = image
        return out

    def _windows(
        self, numbers: Tensor, keys: Tensor, area: tuple[float, float], size: int
    ) -> Tensor:
        """A random window of each picture, scaled to `size`."""
        out = torch.empty((len(numbers), self.shape[0], size, size), dtype=torch.uint8)
        for first in range(0, len(numbers), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            pixels = [self.pixels(number) for number in numbers[some].tolist()]
            sizes = np.array([each.shape[:2] for each in pixels], np.int64)
            places = windows.draw(keys[some], sizes, area)
            for place, (each, window) in enumerate(zip(pixels, places, strict=True), first):
                out[place] = windows.cut(each, window, size)
        return out

    def pixels(self, number: int) -> Pixels:
        """uint8 [H, W, C] of a picture, before it is cut to the split's shape.

        Raises:
            DataError: it cannot be read any more.
        """
        channels = self.shape[0]
        if isinstance(self.pictures, Scaled):
            return self.pictures.pixels(number)
        if isinstance(self.pictures, Arrays):
            return to_channels(self.pictures.pixels[number].permute(1, 2, 0).numpy(), channels)
        try:
            encoded = self.pictures.read(number)
            if self.digests is not None:
                digest = np.frombuffer(hashlib.sha256(encoded).digest(), np.uint8)
                if not np.array_equal(digest, self.digests[number]):
                    raise BadPicture("it is another one now")
            decoded = decode(encoded, self.reading).pixels
        except (BadPicture, OSError) as error:
            raise DataError(
                f"{self.pictures.name(number)} cannot be read any more: {error}",
                "put it back; data must not change while it is trained on",
                one_rank=True,
            ) from error
        return prepared(decoded, channels, self.prepare)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on `device`; a GPU takes it from pinned memory, and nobody waits for that."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def prepared(pixels: Pixels, channels: int, shorter: int | None) -> Pixels:
    """uint8 [H, W, C] of what was decoded; its shorter side scaled to `shorter`, where it is set
    and that side is longer.
    """
    whole = to_channels(pixels, channels)
    return whole if shorter is None else shrink(whole, shorter)


def measured_as(data: Data, measured: Eval | None, shape: Shape) -> tuple[int | None, Shape]:
    """What the shorter side of validation images is scaled to, and their shape.

    Args:
        measured: how they are scaled, where that is otherwise than in training.
        shape: (C, H, W) of training images.
    """
    size = measured.size if measured else None
    side = (measured.crop or size) if measured else None
    return size or data.size, (shape[0], side, side) if side else shape


def to_shape(pixels: Pixels, shape: Shape, scale: int | None) -> Pixels:
    """uint8 [C, H, W] of [H, W, C]; its shorter side scaled to `scale`, and cropped to `shape`."""
    _, height, width = shape
    if scale is not None and (pixels.shape[:2] != (height, width) or scale != height):
        picture = middle(as_picture(pixels))
        factor = scale / min(picture.size)
        picture = picture.resize(
            [max(scale, round(side * factor)) for side in picture.size], Image.Resampling.BILINEAR
        )
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        pixels = as_pixels(picture.crop((left, top, left + width, top + height)))
    return pixels.transpose(2, 0, 1)


def decoded(split: Split) -> Iterator[Tensor]:
    """All its images in order, uint8 [≤1024, C, H, W] at a time."""
    for numbers in torch.split(torch.arange(len(split)), 1024):
        yield split.images(numbers)
