"""What a checkpoint says of the run that it is of, beside weights and progress."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from host.errors import CheckpointError


@dataclass(frozen=True)
class Facts:
    """What the weights belong to.

    Attributes:
        config: the resolved experiment.
        classes: their names, in label order.
        shape: (C, H, W) of an image.
        mean, std: of each channel of the training images, pixels from 0 to 1.
        data_sha256: of the data; None where it was not hashed.
        mixed_precision: no, fp16 or bf16.
        world_size: processes.
    """

    config: dict[str, Any]
    classes: list[str]
    shape: tuple[int, int, int]
    mean: list[float]
    std: list[float]
    data_sha256: str | None
    mixed_precision: str
    world_size: int

    def written(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)

    @staticmethod
    def read(written: Mapping[str, Any], origin: str) -> "Facts":
        """The facts among what a checkpoint says.

        Raises:
            CheckpointError: one is missing.
        """
        names = [field.name for field in fields(Facts)]
        missing = [name for name in names if name not in written]
        if missing:
            raise CheckpointError(
                f"{origin} does not say its {', '.join(missing)}",
                "use one that a training has written",
            )
        channels, height, width = written["shape"]
        known = {name: written[name] for name in names}
        return Facts(**{**known, "shape": (channels, height, width)})
