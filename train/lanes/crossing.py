"""What crosses from one stage of a model to the next."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec


@dataclass
class Crossing:
    """What a stage gives to the next one.

    Attributes:
        leaves: the values that the next stage's first module is given, tensors among them.
        spec: how they stand together.
        wanted: of each tensor, whether the stage before wants its gradient.
        drawn: where generators stand, where the stage has drawn from them; None: it has not.
        shape, kind: of the images that the model was given.
        gradients: of each tensor, where this was given; None: none came.
    """

    leaves: list[Any]
    spec: TreeSpec
    wanted: list[bool]
    drawn: list[Any] | None
    shape: tuple[int, ...]
    kind: torch.dtype
    gradients: list[Tensor | None] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        """Those among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def having(self, tensors: Sequence[Tensor | None]) -> "Crossing":
        """The same with others in place of its tensors."""
        new = iter(tensors)
        leaves = [next(new) if isinstance(leaf, Tensor | Hole) else leaf for leaf in self.leaves]
        return replace(self, leaves=leaves)

    def sent(self) -> "Crossing":
        """The same as the next stage has it, in memory of its own."""
        return self.having([sent(tensor) for tensor in self.tensors])

    def entered(self) -> list[Any]:
        """The leaves as a model is given them: their gradients come here."""
        self.gradients = [None] * len(self.wanted)
        begin = torch.empty(0, requires_grad=True)
        found, number = [], 0
        for leaf in self.leaves:
            if isinstance(leaf, Tensor):
                wanted = self.wanted[number] and torch.is_grad_enabled()
                found.append(_Enter.apply(begin, self, number, leaf) if wanted else leaf)
                number += 1
            else:
                found.append(leaf)
        return found

    def backward(self, gradients: Sequence[Tensor | None]) -> None:
        """The backward pass of the stage that gave this, from what the next one found."""
        pairs = [(t, g) for t, g in zip(self.tensors, gradients, strict=True) if g is not None]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])


class Hole:
    """Stands in a crossing where a tensor is to be."""


class _Enter(torch.autograd.Function):
    """Where a graph begins, by what is no leaf of it: a model may write to what it is given."""

    @staticmethod
    def forward(ctx: Any, _begin: Tensor, crossing: Crossing, number: int, value: Tensor) -> Tensor:
        ctx.place = crossing, number
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        crossing, number = ctx.place
        crossing.gradients[number] = gradient
        return None, None, None, None


def sent(tensor: Tensor) -> Tensor:
    """A tensor as it arrives elsewhere: laid out as it was, where it has no gaps, for the order of
    later sums may follow the layout.
    """
    found = tensor.detach()
    return found.clone(memory_format=torch.preserve_format)
