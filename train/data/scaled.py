"""Pictures that are decoded and scaled, of many sizes, one after another in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from train.data.decode import Pixels
from train.data.pictures import Encoded

_LONGEST = 16  # times the shorter side: one of a pixel's width would be scaled to gigabytes


@dataclass(frozen=True)
class Scaled:
    """Their pixels, and the files that they come from.

    Attributes:
        flat: uint8, the pixels of all of them.
        sizes: heights and widths, int64 [N, 2].
        starts: where in `flat` each begins, int64 [N].
    """

    files: Encoded
    flat: Tensor
    sizes: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]
    channels: int

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, number: int) -> str:
        """What a user knows it by."""
        return self.files.name(number)

    def pixels(self, number: int) -> Pixels:
        """uint8 [H, W, C]."""
        height, width = self.sizes[number].tolist()
        first = int(self.starts[number])
        part = self.flat[first : first + height * width * self.channels]
        return part.view(height, width, self.channels).numpy()


def sizes_of(sizes: np.ndarray[Any, Any], shorter: int) -> np.ndarray[Any, Any]:
    """Heights and widths, int64 [N, 2], of pictures of these sizes once they are scaled."""
    least = sizes.min(axis=1, keepdims=True)
    cropped = np.minimum(sizes, _LONGEST * least)
    # Half a pixel is rounded up: whole numbers alone, the same everywhere.
    scaled = (2 * cropped * shorter + least) // (2 * least)
    chosen: np.ndarray[Any, Any] = np.where(least > shorter, scaled, cropped)
    return chosen


def shrink(pixels: Pixels, shorter: int) -> Pixels:
    """uint8 [H, W, C], its shorter side scaled to `shorter` where it is longer."""
    size = np.array([pixels.shape[:2]], np.int64)
    ((height, width),) = sizes_of(size, shorter).tolist()
    picture = middle(as_picture(pixels))
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return as_pixels(picture)


def middle(picture: Image.Image) -> Image.Image:
    """Its middle, where it is very long."""
    width, height = (min(side, _LONGEST * min(picture.size)) for side in picture.size)
    if (width, height) == picture.size:
        return picture
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def as_picture(pixels: Pixels) -> Image.Image:
    """Of uint8 [H, W, 1] or [H, W, 3]."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def as_pixels(picture: Image.Image) -> Pixels:
    """uint8 [H, W, 1] or [H, W, 3]."""
    pixels = np.array(picture)  # a copy: Pillow's own is read-only
    return pixels[..., None] if pixels.ndim == 2 else pixels
