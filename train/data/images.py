"""Images of a split: decoded once and kept where they are few, else batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from host.errors import DataError
from train.data.decode import BadPicture, Pixels, Reading, decode, to_channels
from train.data.pictures import Arrays, Encoded

_LONGEST = 16  # sides, of what is scaled


@dataclass(frozen=True)
class Split:
    """Images with their classes.

    Attributes:
        pictures: what the images are made from.
        labels: int64 [N].
        shape: (C, H, W) of each image.
        resize: whether pictures are scaled and cropped to it.
        reading: how they are decoded.
        resident: uint8 [N, C, H, W] where the split is small enough to keep, else None.
        mapped: whether that is a file's, whose memory all processes share.
    """

    pictures: Encoded | Arrays
    labels: Tensor
    shape: tuple[int, int, int]
    resize: bool
    reading: Reading
    resident: Tensor | None = None
    mapped: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of all its images, decoded."""
        return len(self) * int(np.prod(self.shape))

    def images(self, numbers: Tensor) -> Tensor:
        """uint8 [B, C, H, W] of the samples with these numbers, int64 [B].

        Raises:
            DataError: a picture cannot be read any more, or is not of the split's shape.
        """
        if self.resident is not None:
            return self.resident.index_select(0, numbers)
        out = torch.empty((len(numbers), *self.shape), dtype=torch.uint8)
        pixels = out.numpy()
        for place, number in enumerate(numbers.tolist()):
            image = to_shape(self._decoded(number), self.shape, resize=self.resize)
            if image.shape != self.shape:
                _, height, width = image.shape
                raise DataError(
                    f"{self.pictures.name(number)} has {width}×{height} pixels now, and not"
                    f" {self.shape[2]}×{self.shape[1]}",
                    "put it back; data must not change while it is trained on",
                    one_rank=True,
                )
            pixels[place] = image
        return out

    def _decoded(self, number: int) -> Pixels:
        if isinstance(self.pictures, Arrays):
            return self.pictures.pixels[number].permute(1, 2, 0).numpy()
        try:
            return decode(self.pictures.read(number), self.reading).pixels
        except (BadPicture, OSError) as error:
            raise DataError(
                f"{self.pictures.name(number)} cannot be read any more: {error}",
                "put it back; data must not change while it is trained on",
                one_rank=True,
            ) from error


def to_shape(pixels: Pixels, shape: tuple[int, int, int], *, resize: bool) -> Pixels:
    """uint8 [C, H, W] of what was decoded; with `resize`, scaled and cropped to `shape`."""
    channels, height, width = shape
    pixels = to_channels(pixels, channels)
    if resize and pixels.shape[:2] != (height, width):
        picture = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        picture = _middle(picture, _LONGEST * min(picture.size))
        scale = height / min(picture.size)
        picture = picture.resize(
            [max(height, round(side * scale)) for side in picture.size], Image.Resampling.BILINEAR
        )
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        pixels = np.asarray(picture.crop((left, top, left + width, top + height)))
        pixels = pixels[..., None] if channels == 1 else pixels
    return pixels.transpose(2, 0, 1)


def _middle(picture: Image.Image, most: int) -> Image.Image:
    """Its middle, no longer than `most`: one of a pixel's width would be scaled to gigabytes."""
    width, height = (min(side, most) for side in picture.size)
    if (width, height) == picture.size:
        return picture
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def decoded(split: Split) -> Iterator[Tensor]:
    """All its images in order, uint8 [≤1024, C, H, W] at a time."""
    for numbers in torch.split(torch.arange(len(split)), 1024):
        yield split.images(numbers)
