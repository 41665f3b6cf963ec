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
from train.lanes.stages import Stages, places
from train.learn.tries import Tries

# By which Python gets numbers of tensors.
_READS = frozenset(
    [
        *("item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__array__", "__bool__"),
        *("__int__", "__float__", "__complex__", "__index__", "__contains__"),
    ]
)
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
        seconds: of the pass.
    """

    begun: dict[str, Begun] = field(default_factory=dict)
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    crossing: list[tuple[int, int, int]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    seconds: float = 0.0


class _Reads(TorchFunctionMode):
    """Notes where Python reads numbers out of tensors."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch, self.reads = watch, list[int]()

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _READS:
            self.reads.append(self._watch.count)
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    """Counts operations, and notes which tensors each one uses and makes."""

    def __init__(self, kept: set[int], images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.kept = 0, kept
        self.uses: dict[int, tuple[int, int]] = {}
        self.crossing: list[tuple[int, int, int]] = []
        # By where in memory each is: when it was made, and its place in `crossing`.
        self._made: dict[int, int] = {_memory(images): 0}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        here = self.count
        self.count += 1
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


def _memory(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _memories(values: Any) -> set[int]:
    return {_memory(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


def see(tries: Tries) -> Seen:
    """Watch a forward pass as in training."""
    model, seen = tries.model, Seen()
    kept = {_memory(place.tensor) for place in places(model)}
    with tries.within(training=True), ExitStack() as stack:
        images = tries.samples.images.clone()
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
        tries.generators.seed_lane(0, 0, 0)
        read = stack.enter_context(_Reads(watch))
        with tries.runtime.accelerator.autocast():
            model(images)
    seen.uses, seen.crossing, seen.reads = watch.uses, watch.crossing, read.reads
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


def why_not(model: nn.Module, seen: Seen, name: str) -> str | None:
    """Why the model cannot be cut where a module begins; None: it can."""
    begun = seen.begun.get(name)
    if begun is None:
        return "is not called in a forward pass"
    if begun.times > 1:
        return f"is called {begun.times} times in a forward pass"
    if begun.at == 0:
        return "has nothing before it"
    for place in places(model):
        used = seen.uses.get(_memory(place.tensor))
        if used is not None and used[0] < begun.at <= used[1]:
            return f"uses {place.name}, which is used before it as well"
    return _needs_more(seen, begun)


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


def best(model: nn.Module, seen: Seen, count: int, tried: frozenset[str]) -> tuple[str, ...] | None:
    """Where to cut the model into so many stages, so that the slowest takes least; None: nowhere.

    Args:
        tried: modules that it is not to be cut at.
    """
    found: list[Begun] = []
    for begun in sorted(seen.begun.values(), key=lambda each: each.at):
        # Of those that begin together, the one that holds the others.
        if begun.name in tried or (found and found[-1].at == begun.at):
            continue
        if why_not(model, seen, begun.name) is None:
            found.append(begun)
    if len(found) < count - 1:
        return None
    starts = [0.0, *(each.seconds for each in found), seen.seconds]
    # least[n, k]: of the first n of them in k stages, the longest stage, the sum of squares (where
    # the longest cannot be helped, the others are to be alike), and the last cut.
    least = {(n, 1): (starts[n], starts[n] ** 2, 0) for n in range(1, len(starts))}
    for stages in range(2, count + 1):
        for n in range(stages, len(starts)):
            least[n, stages] = min(
                (max(longest, starts[n] - starts[m]), squares + (starts[n] - starts[m]) ** 2, m)
                for m in range(stages - 1, n)
                for longest, squares, _ in [least[m, stages - 1]]
            )
    cuts: list[str] = []
    n = len(starts) - 1
    for stages in range(count, 1, -1):
        n = least[n, stages][2]
        cuts.append(found[n - 1].name)
    return tuple(reversed(cuts))


def stages(model: nn.Module, seen: Seen, cuts: Sequence[str]) -> Stages:
    """Which tensor belongs to which stage, and what each takes.

    Raises:
        UsageError: the model cannot be cut so.
    """
    for name in cuts:
        why = why_not(model, seen, name)
        if why is not None:
            raise UsageError(
                f"STAGES: the model cannot be cut at {printable(name)}, which {why}",
                f"name another module, such as {_such(model, seen)}",
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
    owners: dict[str, int] = {}
    for place in places(model):
        used = seen.uses.get(_memory(place.tensor))
        owners[place.name] = 0 if used is None else sum(at <= used[0] for at in ats)
    starts = [0.0, *(seen.begun[name].seconds for name in cuts), seen.seconds]
    whole = max(seen.seconds, 1e-9)
    costs = tuple((end - begin) / whole for begin, end in itertools.pairwise(starts))
    ends = [0, *ats, math.inf]
    elsewhere = tuple(_outside(model, seen, cuts, *span) for span in itertools.pairwise(ends))
    return Stages(tuple(cuts), owners, elsewhere, costs)


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


def _such(model: nn.Module, seen: Seen) -> str:
    """Some modules that it can be cut at, for people."""
    can = [name for name in seen.begun if why_not(model, seen, name) is None]
    return ", ".join(sorted(can, key=lambda name: (name.count("."), seen.begun[name].at))[:4])
