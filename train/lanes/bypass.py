"""A module that belongs to another stage: of what it gives, the shapes are wanted."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from train.lanes import attributes
from train.lanes.crossing import PLAIN
from train.lanes.stages import is_elsewhere

_MOST = 16  # kinds of input whose shapes are remembered


class Bypass:
    """Calls a module on the `meta` device once for each kind of input, and remembers the shapes.

    It is for models that draw nothing in Python: with the same kind of input, each pass over them
    goes the same way. What leaves a trace in the model is called each time.

    Args:
        root: the model.
    """

    def __init__(self, root: nn.Module, module: nn.Module) -> None:
        self.forward = module.forward
        self._root, self._module = root, module
        self._known: dict[Hashable, tuple[list[Any], TreeSpec] | None] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the module gives: shapes."""
        key = self._key(args, named)
        known = self._known.get(key)
        if known is not None:
            leaves, spec = known
            again = [shape_of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return tree_unflatten(again, spec)
        if key is None or key in self._known or len(self._known) >= _MOST:
            return self.forward(*args, **named)
        before = attributes.picture(self._root)
        gave = self.forward(*args, **named)
        leaves, spec = tree_flatten(gave)
        there = [is_elsewhere(x) if isinstance(x, Tensor) else isinstance(x, PLAIN) for x in leaves]
        pure = attributes.difference(before, attributes.picture(self._root)) is None
        self._known[key] = (leaves, spec) if pure and all(there) else None
        return gave

    def _key(self, args: tuple[Any, ...], named: dict[str, Any]) -> Hashable | None:
        """What a call hangs on; None: it cannot be told, or the module might write to it."""
        said: list[Hashable] = [self._module.training, torch.is_grad_enabled()]
        for name, value in [*((None, value) for value in args), *sorted(named.items())]:
            told = _told(value)
            if told is None:
                return None
            said.append((name, told))
        return tuple(said)


def _told(value: Any) -> Hashable | None:
    if isinstance(value, Tensor):
        here = not is_elsewhere(value)
        return None if here else (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, PLAIN):
        return type(value), value
    if type(value) is tuple:
        told = tuple(_told(each) for each in value)
        return None if None in told else told
    return None


class _Wants(torch.autograd.Function):
    """Has a tensor say that it has a gradient, as what it stands for does."""

    @staticmethod
    def forward(_ctx: Any, _begin: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(_ctx: Any, _gradient: Tensor) -> tuple[None, None]:
        return None, None


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor of that shape, type and layout without memory; with a gradient where that has it."""
    new: Tensor = torch.empty_like(tensor, device="meta")
    if tensor.requires_grad and torch.is_grad_enabled():
        new = _Wants.apply(torch.empty(0, device="meta", requires_grad=True), new)
    return new
