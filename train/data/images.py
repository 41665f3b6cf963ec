"""Images of a split: decoded once and kept where they are few, else batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from host.errors import DataError, first_line
from train.data.pictures import Pictures


@dataclass(frozen=True)
class Split:
    """Images with their classes.

    Attributes:
        pictures: what the images are decoded from.
        labels: int64 [N].
        shape: (C, H, W) of each image.
        resident: uint8 [N, C, H, W] where the split is small enough to keep, else None.
    """

    pictures: Pictures
    labels: Tensor
    shape: tuple[int, int, int]
    resize: bool
    resident: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of all its images, decoded."""
        return len(self) * int(np.prod(self.shape))

    def images(self, numbers: Tensor) -> Tensor:
        """uint8 [B, C, H, W] of the samples with these numbers, int64 [B].

        Raises:
            DataError: an image cannot be decoded, or is not of the split's shape.
        """
        if self.resident is not None:
            return self.resident[numbers]
        out = torch.empty((len(numbers), *self.shape), dtype=torch.uint8)
        for place, picture in enumerate(self._decode(numbers.tolist())):
            pixels = _pixels(picture, self.shape, self.resize)
            if pixels.shape != self.shape:
                _, h, w = self.shape
                raise DataError(
                    f"image {numbers[place]} has {pixels.shape[2]}×{pixels.shape[1]} pixels, the"
                    f" first one {w}×{h}",
                    f"set --data.size, for instance {min(h, w)}",
                    one_rank=True,
                )
            out[place] = torch.from_numpy(pixels)
        return out

    def _decode(self, numbers: list[int]) -> list[Image.Image]:
        try:
            return self.pictures.decoded(numbers)
        except Exception as error:  # whatever a decoder makes of bytes it does not understand
            if len(numbers) == 1 and isinstance(error, Image.DecompressionBombError):
                raise DataError(
                    f"image {numbers[0]} has more pixels than data.max_pixels allows",
                    "scale it down, or raise --data.max_pixels",
                    one_rank=True,
                ) from error
            if len(numbers) == 1:
                raise DataError(
                    f"image {numbers[0]} cannot be read: {first_line(error)}",
                    "mend or remove it",
                    one_rank=True,
                ) from error
            return [picture for number in numbers for picture in self._decode([number])]


def _pixels(
    picture: Image.Image, shape: tuple[int, int, int], resize: bool
) -> np.ndarray[Any, Any]:
    """uint8 [C, H, W] of a decoded picture; with `resize`, scaled and cropped to `shape`."""
    channels, height, width = shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    if resize:
        scale = height / min(picture.size)
        picture = picture.resize(
            [max(height, round(side * scale)) for side in picture.size], Image.Resampling.BILINEAR
        )
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    pixels = np.asarray(picture)
    pixels = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return np.array(pixels, order="C")  # a copy: Pillow's own buffer is read-only


def keep(split: Split, most: float) -> Split:
    """The split with its images decoded into memory, where they take no more than `most` bytes."""
    return split if split.nbytes > most else replace(split, resident=torch.cat([*decoded(split)]))


def decoded(split: Split) -> Iterator[Tensor]:
    """All its images in order, uint8 [≤1024, C, H, W] at a time."""
    for numbers in torch.split(torch.arange(len(split)), 1024):
        yield split.images(numbers)
