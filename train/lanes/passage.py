"""A stage's part of a forward pass: from what the stage before it gave to what the next one takes.

Nothing is traced. Each stage calls the model's own forward, all of it. What belongs to other stages
is computed on the `meta` device, where tensors have shapes alone; at the module that the stage
begins with, what the stage before has sent takes the place of what was given; and what the next
stage's first module is given is sent there. So Python's part of a model is the same on all stages,
and what it remembers from pass to pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from host.errors import LockstepError, UsageError
from train.lanes.bypass import Bypass, shape_of
from train.lanes.crossing import Crossing, plain
from train.lanes.seeds import Generators, equal
from train.lanes.stages import Stages, is_elsewhere

Forward = Callable[..., Any]


class Passage:
    """Passes over the stages of a model.

    The model is changed in place: modules at its cuts, and modules that belong to other stages, get
    another `forward`. (A hook would be seen by some layers, which then compute otherwise.)

    Args:
        root: the model.
        called: the same as it is called, wrapped for its precision.
    """

    def __init__(
        self, root: nn.Module, called: Forward, stages: Stages, generators: Generators
    ) -> None:
        self._called, self._cuts, self._generators = called, stages.cuts, generators
        self._before: list[tuple[nn.Module, Forward | None]] = []
        where: dict[str, list[int]] = {}
        for stage, names in enumerate(stages.elsewhere):
            for name in names:
                where.setdefault(name, []).append(stage)
        for name, numbers in where.items():
            module = root.get_submodule(name)
            self._wrap(module, partial(self._pass_by, numbers, Bypass(root, module)))
        for number, name in enumerate(stages.cuts):
            module = root.get_submodule(name)
            self._wrap(module, partial(self._at, number, module.forward))
        self._stage = -1
        self._given: Crossing | None = None
        self._taken: Any = None
        self._fresh: list[Any] = []
        self._reseed: Callable[[], None] = _nothing
        self._images: Tensor = torch.empty(0)

    def close(self) -> None:
        """Have the model's modules as they were."""
        for module, before in reversed(self._before):
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
        self._fresh = self._drawn()
        self._given = None
        if isinstance(given, Tensor):
            self._images = given
        else:
            self._images = torch.empty(given.shape, dtype=given.kind, device="meta")
            self._given = given
        try:
            with _said(self._where()):
                result: Any = self._called(self._images)
        finally:
            self._stage, taken, left = -1, self._taken, self._given
            self._given = self._taken = None
        if left is not None:
            raise _not_here(self._cuts[stage - 1], "is not called in this pass")
        if stage == len(self._cuts):
            if isinstance(result, Tensor) and is_elsewhere(result):
                raise _not_here(self._cuts[-1], "does not give all that comes after it")
            found: Tensor = result
            return found
        if taken is None:
            raise _not_here(self._cuts[stage], "is not called in this pass")
        crossing: Crossing = taken
        return crossing

    def _at(self, number: int, forward: Forward, *args: Any, **named: Any) -> Any:
        if self._stage == number + 1:
            args, named = self._enter(number, args, named)
        elif self._stage == number:
            args, named = self._leave(number, args, named)
        return forward(*args, **named)

    def _enter(self, number: int, args: Any, named: Any) -> Any:
        """What the stage's first module is given: with the tensors that were sent."""
        if self._given is None:
            raise _not_here(self._cuts[number], "is called twice in a pass")
        given, self._given = self._given, None
        leaves, spec = tree_flatten((args, named))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if plain(leaves) != given.plain or len(places) != len(given.tensors):
            raise _not_here(self._cuts[number], "is given other values on each stage")
        for place, tensor in zip(places, given.entered(), strict=True):
            leaves[place] = tensor
        if given.drawn is None:
            self._reseed()  # what came before may have drawn here as well, for nothing
        else:
            self._draw_on(given.drawn)
        return tree_unflatten(leaves, spec)

    def _leave(self, number: int, args: Any, named: Any) -> Any:
        """Take out what the next stage's first module is given; it gets the shapes here."""
        if self._taken is not None:
            raise _not_here(self._cuts[number], "is called twice in a pass")
        leaves, _ = tree_flatten((args, named))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(map(is_elsewhere, tensors)):
            raise _not_here(self._cuts[number], "takes what was there two stages before")
        now = self._drawn()
        drawn = None if equal(now, self._fresh) else now
        wanted = [tensor.requires_grad for tensor in tensors]
        shape, kind = tuple(self._images.shape), self._images.dtype
        self._taken = Crossing(tensors, plain(leaves), wanted, drawn, shape, kind)
        return tree_map_only(Tensor, shape_of, (args, named))

    def _pass_by(self, stages: list[int], bypass: Bypass, *args: Any, **named: Any) -> Any:
        there = self._stage in stages
        return bypass(*args, **named) if there else bypass.forward(*args, **named)

    def _wrap(self, module: nn.Module, forward: Forward) -> None:
        self._before.append((module, vars(module).get("forward")))
        vars(module)["forward"] = forward

    def _where(self) -> str:
        """The cuts at which this stage begins and ends, for people."""
        return " and ".join(self._cuts[max(0, self._stage - 1) : self._stage + 1])

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
        said = str(error).lower()
        if "item()" in said or "data-dependent" in said or "bool" in said:
            why = "leaves a number to another stage that Python reads here"
        elif "meta" in said:
            why = "does not give all that comes after it"
        else:
            raise
        raise _not_here(where, why) from error


def _not_here(name: str, why: str) -> UsageError:
    return UsageError(
        f"the model cannot be cut at {name}, which {why}",
        "name other modules (STAGES=layer2,layer3), or give their number alone (STAGES=3)",
        one_rank=True,
    )


def _nothing() -> None:
    pass
