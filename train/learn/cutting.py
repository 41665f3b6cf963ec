"""Where a model can be cut into stages, and where it is best cut.

One forward pass is watched: which modules begin when, and which tensors are used before and after.
A model can be cut where a module begins if all that comes after needs no more of what came before
than that module is given.
"""

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from host.errors import UsageError
from host.text import printable
from train.lanes.seeds import equal
from train.lanes.stages import Stages, places
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
        self._made: dict[int, int] = {_memory(images): 0}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        here = self.count
        self.count += 1
        if _tells(func, args):
            self.reads.append(here)
        for tensor in (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            place = _memory(tensor)
            if place in self.kept:
                first, _ = self.uses.get(place, (here, here))
                self.uses[place] = first, here
            elif place in self._made:
                self.crossing.append((self._made[place], here, place))
        found = func(*args, **kwargs)
        given = _memories((args, kwargs))
        for tensor in (t for t in tree_leaves(found) if isinstance(t, Tensor)):
            place = _memory(tensor)
            if place not in self.kept and place not in given:  # not a view, nor written in place
                self._made[place] = here + 1
        return found


def _tells(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation tells Python a number of a tensor, or by the shape that it gives."""
    if func.overloadpacket is torch.ops.aten.index:  # marked, and so only for masks
        return any(
            t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1:]) if t is not None
        )
    return any(mark in func.tags for mark in _MARKS)


def _memory(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _memories(values: Any) -> set[int]:
    return {_memory(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


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
    kept = {_memory(place.tensor) for place in places(model)}
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
        seen.draws = not equal(drawn, tries.generators.states())
    seen.uses, seen.crossing, seen.reads = watch.uses, watch.crossing, watch.reads
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


def why_not(model: nn.Module, every: Sequence[Seen], name: str) -> str | None:
    """Why the model cannot be cut where a module begins; None: it can."""
    for seen in every:
        begun = seen.begun.get(name)
        if begun is None:
            return "is not called in each forward pass"
        if begun.times > 1:
            return f"is called {begun.times} times in a forward pass"
        if begun.at == 0:
            return "has nothing before it"
        for place in places(model):
            used = seen.uses.get(_memory(place.tensor))
            if used is not None and used[0] < begun.at <= used[1]:
                return f"uses {place.name}, which is used before it as well"
        why = _needs_more(seen, begun)
        if why is not None:
            return why
    return None


def _needs_more(seen: Seen, begun: Begun) -> str | None:
    """What comes after a module's begin and hangs on more than what it is given."""
    for made, last, memory in seen.crossing:
        # What it is given may be used after it as well, beside what it makes of it.
        handed = memory in begun.given and (last < begun.until or memory in begun.gave)
        if made <= begun.at <= last and not handed:
            return "is not given all that is needed of what comes before it"
    if any(read <= begun.at for read in seen.reads):
        return "comes after Python has read numbers of tensors"
    return None


def best(
    model: nn.Module, every: Sequence[Seen], count: int, tried: frozenset[str]
) -> tuple[str, ...] | None:
    """Where to cut the model into so many stages, so that the slowest takes least; None: nowhere.

    Args:
        every: the first of them is timed.
        tried: modules that it is not to be cut at.
    """
    seen = every[0]
    found: list[Begun] = []
    for begun in sorted(seen.begun.values(), key=lambda each: each.at):
        # Of those that begin together, the one that holds the others.
        if begun.name in tried or (found and found[-1].at == begun.at):
            continue
        if why_not(model, every, begun.name) is None:
            found.append(begun)
    starts = [0.0, *(each.seconds for each in found), seen.seconds]
    # How many parameters are used before: each stage is to have some.
    first = [seen.uses.get(_memory(parameter), (0, 0))[0] for parameter in model.parameters()]
    before = [0, *(sum(at < each.at for at in first) for each in found), len(first)]
    # least[n, k]: of the first n of them in k stages, the longest stage, the sum of squares (where
    # the longest cannot be helped, the others are to be alike), and the last cut.
    least = {(n, 1): (starts[n], starts[n] ** 2, 0) for n in range(1, len(starts)) if before[n]}
    for stages in range(2, count + 1):
        for n in range(stages, len(starts)):
            ways = [
                (max(longest, starts[n] - starts[m]), squares + (starts[n] - starts[m]) ** 2, m)
                for m in range(stages - 1, n)
                if (m, stages - 1) in least and before[m] < before[n]
                for longest, squares, _ in [least[m, stages - 1]]
            ]
            if ways:
                least[n, stages] = min(ways)
    cuts: list[str] = []
    n = len(starts) - 1
    if (n, count) not in least:
        return None
    for stages in range(count, 1, -1):
        n = least[n, stages][2]
        cuts.append(found[n - 1].name)
    return tuple(reversed(cuts))


def stages(model: nn.Module, every: Sequence[Seen], cuts: Sequence[str]) -> Stages:
    """Which tensor belongs to which stage, and what each takes.

    Args:
        every: the first of them is timed.

    Raises:
        UsageError: the model cannot be cut so.
    """
    seen = every[0]
    for name in cuts:
        why = why_not(model, every, name)
        if why is not None:
            raise UsageError(
                f"STAGES: the model cannot be cut at {printable(name)}, which {why}",
                f"name another module, such as {_such(model, every)}",
            )
    ordered = sorted(cuts, key=lambda name: seen.begun[name].at)
    if list(cuts) != ordered:
        raise UsageError(
            f"STAGES: {','.join(cuts)} do not begin in this order",
            f"use STAGES={','.join(ordered)}",
        )
    ats = [seen.begun[name].at for name in cuts]
    if len(set(ats)) < len(ats):
        raise UsageError(f"STAGES: two of {','.join(cuts)} begin together", "name one of them")
    owners, last = dict[str, int](), 0
    for place in places(model):
        # What no pass has used stands by what is beside it.
        last = _stage(every, cuts, _memory(place.tensor), last)
        owners[place.name] = last
    starts = [0.0, *(seen.begun[name].seconds for name in cuts), seen.seconds]
    whole = max(seen.seconds, 1e-9)
    costs = tuple((end - begin) / whole for begin, end in itertools.pairwise(starts))
    ends = [0, *ats, math.inf]
    elsewhere = tuple(_outside(model, seen, cuts, *span) for span in itertools.pairwise(ends))
    if any(each.draws for each in every):  # it may go another way in each pass
        elsewhere = ((),) * len(elsewhere)
    return Stages(tuple(cuts), owners, elsewhere, costs)


def _stage(every: Sequence[Seen], cuts: Sequence[str], memory: int, usual: int) -> int:
    """The stage that uses a tensor first; `usual` where none does."""
    for seen in every:
        if memory in seen.uses:
            return sum(seen.begun[name].at <= seen.uses[memory][0] for name in cuts)
    return usual


def _outside(
    model: nn.Module, seen: Seen, cuts: Sequence[str], begin: float, end: float
) -> tuple[str, ...]:
    """Modules that are called outside of a span of operations alone, the outermost ones."""
    found: list[str] = []
    for name, _ in model.named_modules():
        begun = seen.begun.get(name)
        inside = any(name.startswith(f"{outer}.") for outer in found)
        holds = any(cut.startswith(f"{name}.") for cut in cuts)
        if begun is None or inside or holds or begun.until == begun.at:
            continue
        if begun.until <= begin or begun.at >= end:
            found.append(name)
    return tuple(found)


def _such(model: nn.Module, every: Sequence[Seen]) -> str:
    """Some modules that it can be cut at, for people."""
    begun = every[0].begun
    can = [name for name in begun if why_not(model, every, name) is None]
    first = sorted(can, key=lambda name: (name.count("."), begun[name].at))[:4]
    return ", ".join(first) if first else "none: train it whole, without STAGES"
