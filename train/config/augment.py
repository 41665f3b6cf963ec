"""How training images are varied."""

from typing import Annotated

from pydantic import Field

from train.config.types import Natural
from train.knobs import Section

Area = Annotated[float, Field(gt=0, le=1)]


class Augment(Section):
    """How each training sample is varied, from (seed, epoch, sample) alone."""

    pad: Natural = 0
    """Pad by this many pixels on each side, then crop a random window of the first size."""
    flip: bool = False
    """Mirror left to right, every second time."""
    crop: tuple[Area, Area] | None = None
    """Take a random window of this share of a picture, such as [0.08, 1], scaled to data.size."""
    cutout: Natural = 0
    """Side in pixels of a random square set to the mean; 0: none."""
