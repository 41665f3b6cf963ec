"""Activations that are computed again for the backward pass, and not kept until then.

Of each block of a model its input is kept, and all else is computed a second time when gradients
are (Chen and others, Training Deep Nets with Sublinear Memory Cost, 2016), by torch's `checkpoint`.
What is left to us is that the second pass finds what the first one found, and leaves no trace:
buffers, and generators beside torch's default ones.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from host.errors import UsageError
from train.lanes.blocks import LISTS
from train.lanes.buffers import is_average, is_counter
from train.lanes.seeds import Generators
from train.lanes.state import Kept, slots

Forward = Callable[..., Any]
Around = Callable[[Forward, list[nn.Module]], Forward]


def compute_again(model: nn.Module, moving: Collection[str]) -> frozenset[str]:
    """Have the model's blocks keep their input alone in training, from now on.

    Args:
        moving: names of what the forward pass itself changes, besides batch norm's averages.

    Returns:
        Names of the modules that a block has within it; what it begins with is none of them.

    Raises:
        UsageError: it has no blocks that are known.
    """
    moved = [
        slot
        for slot in slots(model)
        if slot.name in moving
        or (isinstance(slot.owner, _NormBase) and (is_average(slot) or is_counter(slot)))
    ]
    generators = Generators(model)
    within: set[nn.Module] = set()

    def around(forward: Forward, modules: list[nn.Module]) -> Forward:
        inside = {inner for module in modules for inner in module.modules()}
        own = [slot for slot in moved if slot.owner in inside]
        within.update(inside - {modules[0]})

        def passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), _as_now(Kept(own), generators, generators.states())

        def call(*args: Any, **named: Any) -> Any:
            if not (modules[0].training and torch.is_grad_enabled()):
                return forward(*args, **named)
            whole = partial(forward, **_apart(named))
            return checkpoint(whole, *_apart(args), use_reentrant=False, context_fn=passes)

        return call

    if not _Cut(model, around).count:
        raise no_blocks()
    return frozenset(name for name, module in model.named_modules() if module in within)


@contextmanager
def _as_now(kept: Kept, generators: Generators, states: list[Any]) -> Iterator[None]:
    """Buffers and generators as when this was called; afterwards as before the block."""
    later, drawn = Kept(kept.slots), generators.states()
    kept.put_back()
    generators.put(states)
    try:
        yield
    finally:  # torch leaves the pass by an error where it has all that it needs
        later.put_back()
        generators.put(drawn)


def _apart(given: Any) -> Any:
    """The same in lists of its own: a model may go on filling the one that it gave."""
    if isinstance(given, dict):
        return {key: _apart(value) for key, value in given.items()}
    return type(given)(map(_apart, given)) if type(given) in (list, tuple) else given


@contextmanager
def cut(model: nn.Module, around: Around) -> Iterator[int]:
    """Have each block's forward pass go through `around` for a while; how many blocks there are."""
    made = _Cut(model, around)
    with made.undo:
        yield made.count


def no_blocks() -> UsageError:
    """What to say of a model without blocks."""
    return UsageError(
        "model.activation_checkpointing: the model has no blocks whose activations could be"
        " computed again: no nn.Sequential or nn.ModuleList, and no modules that hold others",
        "take it away, or put its layers into an nn.Sequential",
    )


class _Cut:
    """A model's blocks: modules that hold others, each with about the square root of the model's
    layers, so that as much is kept between blocks as within one; and pieces of an `nn.Sequential`.
    """

    def __init__(self, model: nn.Module, around: Around) -> None:
        self.count, self.undo, self._around = 0, ExitStack(), around
        self._most = 2 * math.ceil(math.sqrt(_layers(model)))
        self._walk(model)

    def _walk(self, module: nn.Module) -> None:
        if type(module) is nn.Sequential:
            self._cut_sequence(module)
        for child in module.children():
            before = self.count
            if type(child) in LISTS or _layers(child) > self._most:
                self._walk(child)
            if self.count == before and not _is_simple(child) and type(child) not in LISTS:
                self._put(child, self._around(child.forward, [child]))

    def _cut_sequence(self, sequence: nn.Sequential) -> None:
        parts: list[Forward] = []
        found = False
        for piece in _pieces(list(sequence)):
            if len(piece) > 1:
                parts.append(self._around(partial(_through, piece), piece))
                found = True
            else:
                parts += piece
        if found:
            self._put(sequence, partial(_through, parts))

    def _put(self, module: nn.Module, forward: Forward) -> None:
        own = vars(module).get("forward")
        if own is None:
            self.undo.callback(vars(module).pop, "forward")
        else:
            self.undo.callback(setattr, module, "forward", own)
        vars(module)["forward"] = forward
        self.count += 1


def _layers(module: nn.Module) -> int:
    """How many modules there are in it that hold no others."""
    return sum(map(_is_simple, module.modules()))


def _is_simple(module: nn.Module) -> bool:
    """Whether it holds no others; a scripted one is not asked, and cannot be left half-way."""
    return isinstance(module, torch.jit.ScriptModule) or not [*module.children()]


def _through(layers: Sequence[Forward], given: Any) -> Any:
    for layer in layers:
        given = layer(given)
    return given


def _pieces(layers: list[nn.Module]) -> Iterator[list[nn.Module]]:
    """Runs of layers without modules inside, the square root of their number in each, so that as
    much is kept between them as within one; all else alone.
    """
    scripted = torch.jit.ScriptModule
    simple = [_is_simple(layer) and not isinstance(layer, scripted) for layer in layers]
    length = math.ceil(math.sqrt(sum(simple)))
    piece: list[nn.Module] = []
    for layer, is_simple in zip(layers, simple, strict=True):
        has_weights = next(layer.parameters(), None) is not None
        if piece and (not is_simple or (len(piece) >= length and has_weights)):
            yield piece
            piece = []
        # What begins by writing over its input could not be given that again.
        if is_simple and (piece or not getattr(layer, "inplace", False)):
            piece.append(layer)
        else:
            yield [layer]
    if piece:
        yield piece
