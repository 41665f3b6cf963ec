"""Pictures as data in a page: what the model got of some validation pictures, and its inputs."""

import base64
import io
from collections.abc import Iterable

import torch
from PIL import Image

from train.config import Config
from train.data import ImageData, mosaic
from train.data.decode import Pixels
from train.predictions.table import Said

_LARGEST = 128  # pixels on a side
_INPUTS = 900  # pixels that the picture of inputs is wide


def thumbnails(data: ImageData, shown: Iterable[Said]) -> dict[int, str]:
    """Addresses of validation images as the model gets them, by their place in the split. A row
    that stands in another place than its picture has none: its table was changed.

    Raises:
        DataError: one cannot be read any more.
    """
    held = data.validation
    wanted = {
        each.number
        for each in shown
        if each.number < len(held) and held.pictures.name(each.number) == each.file
    }
    return {
        number: _address(Image.fromarray(_plane(image)), _LARGEST)
        for number in sorted(wanted)
        for image in held.images(torch.tensor([number])).cpu()
    }


def inputs(config: Config, data: ImageData) -> str:
    """Address of a picture of the first training samples, as they enter the model.

    Raises:
        DataError: one cannot be read any more.
    """
    return _address(mosaic.draw(config, data), _INPUTS)


def _plane(image: torch.Tensor) -> Pixels:
    """uint8 [H, W, C], or [H, W] where it is grey."""
    plane: Pixels = image.permute(1, 2, 0).numpy()
    return plane[..., 0] if plane.shape[2] == 1 else plane


def _address(picture: Image.Image, largest: int) -> str:
    picture.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    # Lossless, as long as that is small: what is wrong may hide in a pixel.
    picture.save(data, "PNG", optimize=True)
    kind = "png"
    if len(data.getvalue()) > 4 * largest**2 // 10:
        data = io.BytesIO()
        picture.save(data, "WEBP", quality=80)
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
