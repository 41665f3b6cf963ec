"""What crosses from one stage of a model to the next."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)
"""What a value may be, beside a tensor, that two stages can compare."""


@dataclass
class Crossing:
    """What a stage gives to the next one: the tensors that its first module is given. All else that
    it is given, the next stage has made itself.

    Attributes:
        tensors: in the order in which they stand among what the module is given.
        plain: what else the module is given, as text: the next stage is to have made the same.
        wanted: of each tensor, whether the stage before wants its gradient.
        drawn: where generators stand, where the stage has drawn from them; None: it has not.
        shape, kind: of the images that the model was given.
        gradients: of each tensor, where this was given; None: none came.
    """

    tensors: list[Tensor]
    plain: str
    wanted: list[bool]
    drawn: list[Any] | None
    shape: tuple[int, ...]
    kind: torch.dtype
    gradients: list[Tensor | None] = field(default_factory=list)

    def sent(self) -> "Crossing":
        """The same as the next stage has it, in memory of its own."""
        return replace(self, tensors=[sent(tensor) for tensor in self.tensors])

    def entered(self) -> list[Tensor]:
        """The tensors as a model is given them: their gradients come here."""
        self.gradients = [None] * len(self.wanted)
        if not torch.is_grad_enabled():
            return self.tensors
        begin = torch.empty(0, requires_grad=True)
        found = []
        for number, (tensor, wanted) in enumerate(zip(self.tensors, self.wanted, strict=True)):
            found.append(_Enter.apply(begin, self, number, tensor) if wanted else tensor)
        return found

    def backward(self, gradients: Sequence[Tensor | None]) -> None:
        """The backward pass of the stage that gave this, from what the next one found."""
        pairs = [(t, g) for t, g in zip(self.tensors, gradients, strict=True) if g is not None]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])


def plain(leaves: Sequence[Any]) -> str:
    """The values that a module is given, as text, but for tensors and what cannot be compared."""
    return repr([leaf if isinstance(leaf, PLAIN) else None for leaf in leaves])


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
    found = tensor.detach().resolve_conj().resolve_neg()
    return found.clone(memory_format=torch.preserve_format)
