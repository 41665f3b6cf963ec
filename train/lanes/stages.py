"""A model cut into stages, one for each process: which tensors belong to which.

Each process keeps the whole tree of modules. What belongs to another stage is on the `meta` device
there: it has a shape, and no memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stages:
    """Where a model is cut.

    Attributes:
        cuts: the names of the modules that stages begin with, from the second stage on.
        owners: the stage of each parameter and buffer, by each of its names.
        elsewhere: of each stage, modules that are called outside of it alone, the outermost ones.
        costs: of each stage, its share of the time of a forward pass.
    """

    cuts: tuple[str, ...]
    owners: Mapping[str, int]
    elsewhere: tuple[tuple[str, ...], ...]
    costs: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """How many stages there are."""
        return len(self.cuts) + 1


@dataclass(frozen=True)
class Place:
    """A place of a model that holds a parameter or a buffer; a tensor may have several.

    Attributes:
        name: as `named_parameters` and `named_buffers` have it.
        holds: the owner's parameters, or its buffers, by name.
        leaf: the name among them.
    """

    name: str
    holds: dict[str, Any]
    leaf: str

    @property
    def tensor(self) -> Tensor:
        """What is there now."""
        found: Tensor = self.holds[self.leaf]
        return found


def places(model: nn.Module) -> Iterator[Place]:
    """All of a model's, with buffers that are not saved."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for holds in (module._parameters, module._buffers):
            for leaf, tensor in holds.items():
                if tensor is not None:
                    yield Place(f"{prefix}.{leaf}" if prefix else leaf, holds, leaf)


def hold(model: nn.Module, stages: Stages, stage: int) -> None:
    """Keep what belongs to a stage, and the shapes alone of everything else."""
    shapes: dict[int, Tensor] = {}
    kept: list[Tensor] = []  # or the number of one that is gone would stand for another
    for place in list(places(model)):
        tensor = place.tensor
        if stages.owners[place.name] == stage or is_elsewhere(tensor):
            continue
        kept.append(tensor)
        if id(tensor) not in shapes:
            shape: Any = torch.empty_like(tensor, device="meta")
            if isinstance(tensor, nn.Parameter):
                shape = nn.Parameter(shape, requires_grad=tensor.requires_grad)
            shapes[id(tensor)] = shape
        place.holds[place.leaf] = shapes[id(tensor)]


@contextmanager
def holding(model: nn.Module, stages: Stages, stage: int) -> Iterator[None]:
    """Within it the model has what belongs to a stage, and the shapes of everything else."""
    others = (place for place in places(model) if stages.owners[place.name] != stage)
    moved = [(place, place.tensor) for place in others]
    hold(model, stages, stage)
    try:
        yield
    finally:
        for place, tensor in moved:
            place.holds[place.leaf] = tensor


def is_elsewhere(tensor: Tensor) -> bool:
    """Whether a tensor of a model belongs to another stage."""
    return tensor.device.type == "meta"
