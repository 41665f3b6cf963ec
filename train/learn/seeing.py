"""What a pass over a model does, operation by operation: which modules begin and end, which tensors
are made, used and kept, and what Python reads of them.
"""

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.lanes.seeds import equal
from train.lanes.stages import places
from train.learn.tries import Tries

# By which Python gets numbers of tensors, beside the operations that torch marks.
_READS = frozenset(["tolist", "numpy", "__array__"])
_MARKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_SEEDS = 8  # passes that are watched where a model draws in Python
_TIMES = 3  # passes that are timed: the quickest counts


@dataclass
class Begun:
    """A module that began in the pass.

    Attributes:
        at, until: how many operations came before, and how many before its end.
        given, gave: where in memory the tensors are that it was given, and that it returned.
        times: how often it was called.
        seconds: until it began.
    """

    name: str
    at: int
    given: set[int]
    until: int = 0
    gave: set[int] = field(default_factory=set)
    times: int = 1
    seconds: float = 0.0


@dataclass
class Seen:
    """What was seen of a pass.

    Attributes:
        begun: modules by name, in the order in which they began.
        uses: of each place in memory, when it was used first and last: numbers of operations.
        crossing: spans of operations from where a tensor was made to where it was used last, and
            where in memory it is.
        reads: where Python read numbers out of tensors: on other stages there are none.
        draws: whether random numbers were drawn by other generators than torch's own.
        seconds: of the pass.
    """

    begun: dict[str, Begun] = field(default_factory=dict)
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    crossing: list[tuple[int, int, int]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    draws: bool = False
    seconds: float = 0.0


class _Reads(TorchFunctionMode):
    """Notes where Python reads numbers out of tensors."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _READS:
            self._watch.reads.append(self._watch.count)
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    """Counts operations, and notes which tensors each one uses and makes."""

    def __init__(self, kept: set[int], images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.kept = 0, kept
        self.uses: dict[int, tuple[int, int]] = {}
        self.crossing: list[tuple[int, int, int]] = []
        self.reads: list[int] = []
        # By where in memory each is: when it was made, and its place in `crossing`.
        self._made: dict[int, int] = {memory(images): 0}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        here = self.count
        self.count += 1
        if _tells(func, args):
            self.reads.append(here)
        for tensor in (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            place = memory(tensor)
            if place in self.kept:
                first, _ = self.uses.get(place, (here, here))
                self.uses[place] = first, here
            elif place in self._made:
                self.crossing.append((self._made[place], here, place))
        found = func(*args, **kwargs)
        given = _memories((args, kwargs))
        for tensor in (t for t in tree_leaves(found) if isinstance(t, Tensor)):
            place = memory(tensor)
            # Not a view, nor written in place; but what was made of Python's numbers.
            anew = place not in given or func.overloadpacket is torch.ops.aten.lift_fresh
            if place not in self.kept and anew:
                self._made[place] = here + 1
        return found


def _tells(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation tells Python a number of a tensor, or by the shape that it gives."""
    if func.overloadpacket is torch.ops.aten.index:  # marked, and so only for masks
        return any(
            t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1:]) if t is not None
        )
    return any(mark in func.tags for mark in _MARKS)


def memory(tensor: Tensor) -> int:
    """Where in memory a tensor is, with all views of it."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _memories(values: Any) -> set[int]:
    return {memory(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


def see(tries: Tries) -> list[Seen]:
    """Watch passes as in training, and one as in an evaluation. Where a model decides by random
    numbers in Python, several are watched: one might be left out in one of them.
    """
    found = [_watched(tries, training=True, seed=0)]
    seeds = range(1, _SEEDS if found[0].draws else 2)
    found += [_watched(tries, training=True, seed=seed) for seed in seeds]
    return [*found, _watched(tries, training=False, seed=0)]


def _watched(tries: Tries, *, training: bool, seed: int) -> Seen:
    model, seen = tries.model, Seen()
    kept = {memory(place.tensor) for place in places(model)}
    grad = torch.set_grad_enabled(training)
    with tries.within(training=training), grad, ExitStack() as stack:
        images = tries.images(seed).clone()
        watch = stack.enter_context(_Watch(kept, images))

        def begins(name: str, _module: nn.Module, args: Any, named: Any) -> None:
            if name in seen.begun:
                seen.begun[name].times += 1
                return
            seen.begun[name] = Begun(name, watch.count, _memories((args, named)))

        def ends(name: str, _module: nn.Module, _args: Any, gave: Any) -> None:
            begun = seen.begun[name]
            begun.until = watch.count
            begun.gave |= _memories(gave)

        for name, module in model.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):
                hook = module.register_forward_pre_hook(partial(begins, name), with_kwargs=True)
                stack.callback(hook.remove)
                stack.callback(module.register_forward_hook(partial(ends, name)).remove)
        tries.generators.seed_lane(seed, 0, 0)
        drawn = tries.generators.states()
        stack.enter_context(_Reads(watch))
        with tries.runtime.accelerator.autocast():
            model(images)
        # What comes after the pass may lie where one of its tensors was.
        seen.uses, seen.reads = dict(watch.uses), [*watch.reads]
        seen.crossing = [*watch.crossing]
        seen.draws = not equal(drawn, tries.generators.states())
    return seen


def time_them(tries: Tries, seen: Seen) -> None:
    """Note how long the pass takes until each module begins, and as a whole."""
    seen.seconds = math.inf
    for _ in range(_TIMES):
        begun = _timed(tries, seen)
        if begun[""] < seen.seconds:
            seen.seconds = begun.pop("")
            for name, seconds in begun.items():
                seen.begun[name].seconds = seconds


def _timed(tries: Tries, seen: Seen) -> dict[str, float]:
    """Seconds of a pass until each module begins; under no name, of the whole pass."""
    model, begun = tries.model, dict[str, float]()
    with tries.within(training=True), ExitStack() as stack:

        def begins(name: str, _module: nn.Module, _args: Any) -> None:
            _synchronize(tries)
            begun.setdefault(name, time.perf_counter() - start)

        for name, module in model.named_modules():
            if name in seen.begun:
                hook = module.register_forward_pre_hook(partial(begins, name))
                stack.callback(hook.remove)
        tries.generators.seed_lane(0, 0, 0)
        images = tries.samples.images.clone()
        _synchronize(tries)
        start = time.perf_counter()
        with tries.runtime.accelerator.autocast():
            model(images)
        _synchronize(tries)
        return {**begun, "": time.perf_counter() - start}


def _synchronize(tries: Tries) -> None:
    if tries.runtime.device.type == "cuda":
        torch.cuda.synchronize()
