"""A stage's part of a forward pass: from what the stage before it gave to what the next one takes.

Nothing is traced. Each stage calls the model's own forward. What comes before the stage runs on the
`meta` device, where it costs no more than its Python; at the module that the stage begins with,
what the stage before has sent takes the place of what was given; and at the module that the next
stage begins with, what it is given is taken out of the pass, which ends there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from host.errors import LockstepError, UsageError
from train.lanes.seeds import Generators
from train.lanes.stages import is_elsewhere

Forward = Callable[..., Any]


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


class _Leave(BaseException):
    """Ends a forward pass where the next stage begins. A model might catch an Exception."""


class Passage:
    """Passes over the stages of a model.

    The model is changed in place: the modules at its cuts get another `forward`. (A hook would be
    seen by some layers, which then compute otherwise.)

    Args:
        root: the model.
        called: the same as it is called, wrapped for its precision.
        cuts: as `Stages` has them.
    """

    def __init__(
        self, root: nn.Module, called: Forward, cuts: Sequence[str], generators: Generators
    ) -> None:
        self._called, self._cuts, self._generators = called, cuts, generators
        self._modules = [root.get_submodule(name) for name in cuts]
        self._before = [vars(module).get("forward") for module in self._modules]
        for number, module in enumerate(self._modules):
            vars(module)["forward"] = partial(self._at, number, module.forward)
        self._stage = -1
        self._given: Crossing | None = None
        self._taken: Any = None
        self._reseed: Callable[[], None] = _nothing

    def close(self) -> None:
        """Have the model's modules as they were."""
        for module, before in zip(self._modules, self._before, strict=True):
            if before is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = before

    def run(
        self, stage: int, given: Tensor | Crossing, reseed: Callable[[], None]
    ) -> Crossing | Tensor:
        """One stage's part of a pass.

        Args:
            given: the images to the first stage, and to each other one what came from before it.
            reseed: seeds whatever the model draws from, as for the whole pass.

        Returns:
            What the next stage takes; of the last one, what the model gives.

        Raises:
            UsageError: the model cannot be cut so.
        """
        self._stage, self._reseed, self._taken = stage, reseed, None
        reseed()
        fresh = self._drawn()
        if isinstance(given, Tensor):
            images, shape, kind = given, tuple(given.shape), given.dtype
            self._given = None
        else:
            shape, kind = given.shape, given.kind
            images = torch.empty(shape, dtype=kind, device="meta")
            self._given = given
        result: Any = None
        try:
            with _said(self._where()):
                result = self._called(images)
        except _Leave:
            pass
        finally:
            self._stage = -1
        if self._given is not None:
            raise _not_here(self._cuts[stage - 1], "is not called in this pass")
        if stage == len(self._cuts):
            if isinstance(result, Tensor) and is_elsewhere(result):
                raise _not_here(self._cuts[-1], "does not give all that comes after it")
            found: Tensor = result
            return found
        if self._taken is None:
            raise _not_here(self._cuts[stage], "is not called in this pass")
        leaves, spec = tree_flatten(self._taken)
        self._taken = None
        if any(isinstance(leaf, Tensor) and is_elsewhere(leaf) for leaf in leaves):
            raise _not_here(self._cuts[stage], "takes what was there two stages before")
        now = self._drawn()
        drawn = None if _equal(now, fresh) else now
        wanted = [leaf.requires_grad for leaf in leaves if isinstance(leaf, Tensor)]
        return Crossing(leaves, spec, wanted, drawn, shape, kind)

    def _at(self, number: int, forward: Forward, *args: Any, **named: Any) -> Any:
        if self._stage == number:
            self._taken = (args, named)
            raise _Leave
        if self._stage == number + 1:
            if self._given is None:
                raise _not_here(self._cuts[number], "is called twice in a pass")
            given, self._given = self._given, None
            args, named = tree_unflatten(given.entered(), given.spec)
            if given.drawn is None:
                self._reseed()  # what came before has drawn here as well, for nothing
            else:
                self._draw_on(given.drawn)
        return forward(*args, **named)

    def _where(self) -> str:
        begin, end = self._stage - 1, self._stage
        names = ([self._cuts[begin]] if begin >= 0 else []) + list(self._cuts[end : end + 1])
        return " and ".join(names)

    def _drawn(self) -> list[Any]:
        """Where all generators stand."""
        states: list[Any] = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        return [*states, *self._generators.states()]

    def _draw_on(self, states: list[Any]) -> None:
        torch.set_rng_state(states[0])
        rest = states[1:]
        if torch.cuda.is_initialized():
            torch.cuda.set_rng_state(rest[0])
            rest = rest[1:]
        self._generators.put(rest)


@contextmanager
def _said(where: str) -> Iterator[None]:
    """What torch says where tensors of two stages meet, for people."""
    try:
        yield
    except LockstepError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        if "meta" in str(error).lower():
            raise _not_here(where, "does not give all that comes after it") from error
        raise


def _not_here(name: str, why: str) -> UsageError:
    return UsageError(
        f"the model cannot be cut at {name}, which {why}",
        "name other modules (STAGES=layer2,layer3), or give their number alone (STAGES=3)",
    )


def _nothing() -> None:
    pass


def _equal(one: Any, other: Any) -> bool:
    """Whether the states of generators are the same; they hold tensors, arrays and tuples."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    found = one == other
    return bool(found.all()) if hasattr(found, "all") else bool(found)
