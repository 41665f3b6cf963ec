"""A picture of what enters the model: the first training samples, varied, with their classes."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from train.config import Config
from train.data.image_data import ImageData
from train.data.loader import lane_blocks
from train.data.vary import Augmenter

_COLUMNS, _ROWS = 8, 6
_TILE = 112  # pixels on a side, of small images at least
_LINE = 16  # for the class


def draw(config: Config, images: ImageData) -> Image.Image:
    """The first samples that a training with this experiment consumes, in their order."""
    # Where they are kept on a GPU, they are varied there.
    kept = images.train.resident
    device = torch.device("cpu") if kept is None else kept.device
    augmenter = Augmenter(config.augment, images.mean, images.std, device)
    inputs, labels = _first(config, images, augmenter, device)
    scale, shift = augmenter.scale, augmenter.shift
    # Back from what is normalised to what can be seen.
    pixels = ((inputs - shift) / scale).round().clamp(0, 255).to(torch.uint8).cpu()
    return sheet(pixels, [images.classes[label] for label in labels.tolist()])


def sheet(pixels: Tensor, words: Sequence[str]) -> Image.Image:
    """Images, uint8 [N, C, H, W], side by side, small ones larger, each over its words."""
    factor = max(1, _TILE // max(pixels.shape[2:]))
    height, width = (factor * side for side in pixels.shape[2:])
    rows = math.ceil(len(pixels) / _COLUMNS)
    drawn = Image.new("RGB", (_COLUMNS * width, rows * (height + _LINE)), "white")
    pen, font = ImageDraw.Draw(drawn), _font()
    for place, (image, said) in enumerate(zip(pixels, words, strict=True)):
        left, top = (place % _COLUMNS) * width, (place // _COLUMNS) * (height + _LINE)
        array = image.permute(1, 2, 0).numpy()
        tile = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
        drawn.paste(tile.resize((width, height), Image.Resampling.NEAREST), (left, top))
        pen.text((left + 2, top + height + 1), said, fill="black", font=font)
    return drawn


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Matplotlib's, which has accents, Greek and Cyrillic; Pillow's own has ASCII."""
    found = find_spec("matplotlib")
    for place in found.submodule_search_locations or () if found else ():
        return ImageFont.truetype(Path(place) / "mpl-data/fonts/ttf/DejaVuSans.ttf", 10)
    return ImageFont.load_default(11)


def _first(
    config: Config, images: ImageData, augmenter: Augmenter, device: torch.device
) -> tuple[Tensor, Tensor]:
    """float32 [N, C, H, W] and int64 [N]."""
    alone = config.model_copy(
        update={
            "data": config.data.model_copy(update={"workers": 0}),
            "augment": config.augment.grown,  # all in one size
        }
    )
    wanted = _COLUMNS * _ROWS
    total = wanted + config.batch_size  # however short the training is
    inputs, labels = [], []
    blocks = lane_blocks(
        images.train, alone, range(config.lanes), device, first_step=0, total=total
    )
    with closing(blocks):
        for block, sizes in blocks:
            varied = replace(block, images=augmenter(block.images, block.keys))
            for batch in map(augmenter.mix, varied.split(sizes)):
                inputs.append(batch.images)
                labels.append(batch.prevailing)
            if sum(map(len, labels)) >= wanted:
                break
    return torch.cat(inputs)[:wanted], torch.cat(labels)[:wanted]
