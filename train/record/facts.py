"""What a checkpoint says of the run that it is of, beside weights and progress."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from host.errors import CheckpointError
from host.text import some

Kind = TypeVar("Kind")
Length = Annotated[int, Field(ge=1)]


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
        sharded: whether the weights were spread over them.
    """

    config: dict[str, Any]
    classes: list[str]
    shape: tuple[Length, Length, Length]
    mean: list[float]
    std: list[float]
    data_sha256: str | None
    mixed_precision: str
    world_size: int
    sharded: bool = False

    def other_classes(self, now: Sequence[str]) -> str:
        """How data of other classes differs: "has no cat and has dog as well"; "" of the same."""
        missing, more = {*self.classes} - {*now}, {*now} - {*self.classes}
        said = [f"has no {some(missing)}"] * bool(missing)
        return " and ".join(said + [f"has {some(more)} as well"] * bool(more))

    def written(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)

    @staticmethod
    def read(written: Mapping[str, Any], origin: str) -> "Facts":
        """The facts among what a checkpoint says.

        Raises:
            CheckpointError: one is missing.
        """
        names = [field.name for field in fields(Facts) if field.name in written]
        needed = [field.name for field in fields(Facts) if field.default is MISSING]
        missing = [name for name in needed if name not in written]
        if missing:
            raise CheckpointError(
                f"{origin} does not say its {', '.join(missing)}",
                "use one that a training has written",
            )
        return checked(Facts, {name: written[name] for name in names}, origin)


def checked(kind: type[Kind], written: dict[str, Any], origin: str) -> Kind:
    """What a checkpoint says, as a dataclass of the types that it declares.

    Raises:
        CheckpointError: naming what is of another type, or out of its range.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(written), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{origin} says a {name} that cannot be: {first['msg']}",
            "use another checkpoint of the run, such as an older step-*",
        ) from error
