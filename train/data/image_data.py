"""Both splits of the images: described, marked, and put where a training wants them."""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from host.errors import OutOfMemory, UsageError
from host.text import printable
from train.config import Data
from train.data.images import Split

_LISTED = 1000  # names in a record


@dataclass(frozen=True)
class ImageData:
    """A training and a validation split with the same classes.

    Attributes:
        classes: their names, in label order.
        mean, std: of each channel, pixels from 0 to 1.
        sha256: over the bytes of all pictures, their labels and the classes.
        left_out: files that are no data, and why, by name.
        skipped: pictures that cannot be read, and why, by name.
        doubts: what else a person should know of it.
        held_out: whether the validation split is a share of the source's only one.
    """

    train: Split
    validation: Split
    classes: list[str]
    mean: list[float]
    std: list[float]
    sha256: str
    left_out: dict[str, str]
    skipped: dict[str, str]
    doubts: list[str]
    held_out: bool = False

    def mark(self) -> str:
        """SHA-256 over all that enters the model before it is varied."""
        about = f"{self.sha256} {self.train.shape} {self.validation.shape} {self.mean} {self.std}"
        return hashlib.sha256(about.encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """What there is, and what was left out and why, for a run's record."""
        return {
            "sha256": self.sha256,
            "training": len(self.train),
            "validation": len(self.validation),
            "shape": list(self.train.shape),
            "left_out": _listed(self.left_out),
            "skipped": _listed(self.skipped),
            "doubts": self.doubts,
        }

    def resident(self, device: torch.device) -> int:
        """Bytes of images that each process keeps in the memory of such a device for itself."""
        splits = (self.train, self.validation)
        kept = [s.resident for s in splits if s.resident is not None and not s.mapped]
        return sum(each.nbytes for each in kept if each.device.type == device.type)

    def placed(self, config: Data, device: torch.device) -> "ImageData":
        """The same, its images where `data.cache_on` wants them for a training on `device`.

        Raises:
            UsageError: they take more than `data.cache`.
            OutOfMemory: they take more than the GPU has left.
        """
        if config.cache_on == "host":
            return self
        size = self.wanted(config)
        try:
            train, validation = (split.on(device) for split in (self.train, self.validation))
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"data.cache_on: gpu, and the GPU has not the {size / 2**30:.2f} GiB left that the"
                " images take",
                "--data.cache_on host gives the same bits",
                one_rank=True,
            ) from error
        return replace(self, train=train, validation=validation)

    def wanted(self, config: Data) -> int:
        """Bytes that all images take in a GPU's memory.

        Raises:
            UsageError: a split takes more than `data.cache`.
        """
        splits = (self.train, self.validation)
        most = max([s.nbytes for s in splits if s.resident is None], default=0) / 2**30
        if most:
            raise UsageError(
                f"data.cache_on: gpu, and a split's images take {most:.2f} GiB, more than"
                f" data.cache ({config.cache:g})",
                f"set --data.cache {math.ceil(10 * most) / 10:g} if the GPU has room for that",
            )
        return sum(split.nbytes for split in splits)


def check_place(config: Data, device: torch.device) -> None:
    """See, before anything is read, that there is a GPU where images are to be kept on one.

    Raises:
        UsageError: there is none.
    """
    if config.cache_on == "gpu" and device.type != "cuda":
        raise UsageError(
            f"data.cache_on: gpu, and this training is on the {device.type.upper()}",
            "--data.cache_on host gives the same pixels",
        )


def _listed(names: dict[str, str]) -> dict[str, Any]:
    """How many, and why, of the first ones by name."""
    first = sorted(names.items())[:_LISTED]
    return {"count": len(names), "why": {printable(name): why for name, why in first}}
