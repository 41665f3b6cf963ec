"""The model as others call it: pixels in, logits out; and what must be done to a picture before."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from train.config import Config
from train.data.images import measured_as
from train.record.facts import Facts


class Deployed(nn.Module):
    """uint8 [B, C, H, W] in, as a picture's pixels are; float32 logits [B, classes] out.

    Args:
        mean, std: of each channel, pixels from 0 to 1.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        scale = torch.tensor([1 / (255 * s) for s in std])[:, None, None]
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])[:, None, None]
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, images: Tensor) -> Tensor:
        """As an evaluation has it."""
        logits: Tensor = self.model(images.to(torch.float32) * self.scale + self.shift)
        return logits.float()


@dataclass(frozen=True)
class Preprocessing:
    """What becomes of a picture before its pixels are given to the model, in this order.

    Attributes:
        channels: 1: to grey; 3: to colour.
        prepared: what the shorter side is scaled to first, where it is longer; None: not at all.
        shorter_side: what that is scaled to, bilinear and antialiased as Pillow does it; None: a
            picture must have the size already.
        height, width: of the middle that is cropped.
        mean, std: of each channel, pixels from 0 to 1; the exported programs do it themselves.
    """

    channels: int
    prepared: int | None
    shorter_side: int | None
    height: int
    width: int
    mean: list[float]
    std: list[float]

    def written(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def preprocessing(config: Config, facts: Facts) -> Preprocessing:
    """That of an evaluation."""
    scale, (channels, height, width) = measured_as(config.data, config.eval, facts.shape)
    return Preprocessing(channels, config.data.prepare, scale, height, width, facts.mean, facts.std)
