"""How training images are varied."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from host.errors import UsageError
from train.config.types import Fraction, Natural, Side
from train.knobs import Section, idle

Area = Annotated[float, Field(gt=0, le=1)]
Range = Annotated[float, Field(ge=0, le=100)]
_RAND = idle("augment.policy", None, "trivialaugment", "autoaugment")


class Augment(Section):
    """How each training sample is varied, from (seed, epoch, sample) alone."""

    pad: Natural = 0
    """Pad by this many pixels on each side, then crop a random window of the first size."""
    flip: bool = False
    """Mirror left to right, every second time."""
    crop: tuple[Area, Area] | None = None
    """Take a random window of this share of a picture, such as [0.08, 1], scaled to data.size."""
    sizes: Annotated[list[Side], Field(min_length=1)] | None = None
    """Sizes that windows have first, such as [128, 160]; at last data.size."""
    until: list[Fraction] = Field([], json_schema_extra=idle("augment.sizes", None))
    """Shares of the run until which windows have each of augment.sizes, such as [0.4, 0.7]."""
    policy: Literal["randaugment", "trivialaugment", "autoaugment"] | None = None
    """Random operations as torchvision draws them; autoaugment is the policy for CIFAR."""
    policy_operations: Annotated[int, Field(ge=1, le=16)] = Field(2, json_schema_extra=_RAND)
    """RandAugment: operations after another."""
    policy_strength: Annotated[int, Field(ge=0, le=30)] = Field(9, json_schema_extra=_RAND)
    """RandAugment: how strong each is, from 0 to 30."""
    brightness: Range = 0.0
    """Multiply by a factor between 1 - this and 1 + this, not below 0."""
    contrast: Range = 0.0
    """Such a factor for the distance from the mean grey."""
    saturation: Range = 0.0
    """Such a factor for the distance from grey, of images in colour."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Turn colours by up to this share of the colour circle, either way."""
    grey: Fraction = 0.0
    """Share of images that lose their colour."""
    cutout: Natural = 0
    """Side in pixels of a random square set to the mean; 0: none."""
    erasing: Fraction = 0.0
    """Share of images of which a random rectangle, 2 to 33 % of the area, is set to the mean."""

    repeats: Annotated[int, Field(ge=1, le=1024)] = 1
    """Times that a batch has each of its samples, varied otherwise each time."""
    mixup: Annotated[float, Field(ge=0)] = 0.0
    """Blend each sample with another, by a share from Beta(this, this), such as 0.2; 0: never."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """Put a window of another sample in, of such a share; 0: never. With mixup: one of the two."""

    @model_validator(mode="after")
    def _windows(self) -> "Augment":
        if self.crop is not None and self.crop[0] > self.crop[1]:
            raise UsageError(
                f"augment.crop: {self.crop[0]} is more than {self.crop[1]}",
                "give the least share first",
            )
        sizes = self.sizes or []
        if sizes and self.crop is None:
            raise UsageError("augment.sizes without augment.crop", "set --augment.crop [0.25,1]")
        if len(sizes) != len(self.until):
            raise UsageError(
                f"augment.sizes has {len(sizes)} and augment.until {len(self.until)} numbers",
                "say of each size until which share of the run windows have it",
            )
        if not all(0 < a < b for a, b in pairwise([*self.until, 1.0])):
            raise UsageError(
                f"augment.until: {self.until}", "give shares that rise between 0 and 1"
            )
        return self

    @property
    def grown(self) -> "Augment":
        """The same with windows of their last size from the first step on."""
        return self.model_copy(update={"sizes": None, "until": []})

    @property
    def varies(self) -> bool:
        """Whether the same sample may look otherwise another time."""
        alone = {"repeats", "sizes", "until", "policy_operations", "policy_strength"}
        return any(value for name, value in self if name not in alone)

    @property
    def jitters(self) -> bool:
        """Whether brightness, contrast or colours are varied."""
        return any((self.brightness, self.contrast, self.saturation, self.hue))
