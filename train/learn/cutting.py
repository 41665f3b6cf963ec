"""Where a model can be cut into stages: where a module begins, if all that comes after needs no
more of what came before than that module is given. And where it is best cut.
"""

import itertools
import math
from collections.abc import Sequence

from torch import nn

from host.errors import UsageError
from host.text import printable
from train.lanes.stages import Stages, places
from train.learn.seeing import Begun, Seen, memory


def why_not(model: nn.Module, every: Sequence[Seen], name: str) -> str | None:
    """Why the model cannot be cut where a module begins; None: it can."""
    for seen in every:
        begun = seen.begun.get(name)
        if begun is None:
            there = name in dict(model.named_modules())
            return "is not called in each forward pass" if there else "it does not have"
        if begun.times > 1:
            return f"is called {begun.times} times in a forward pass"
        if begun.at == 0:
            return "has nothing before it"
        for place in places(model):
            used = seen.uses.get(memory(place.tensor))
            if used is not None and used[0] < begun.at <= used[1]:
                return f"uses {place.name}, which is used before it as well"
        why = _needs_more(seen, begun)
        if why is not None:
            return why
    return None


def _needs_more(seen: Seen, begun: Begun) -> str | None:
    """What comes after a module's begin and hangs on more than what it is given."""
    for made, last, place in seen.crossing:
        # What it is given may be used after it as well, beside what it makes of it.
        handed = place in begun.given and (last < begun.until or place in begun.gave)
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
    first = [seen.uses.get(memory(parameter), (0, 0))[0] for parameter in model.parameters()]
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
        last = _stage(every, cuts, memory(place.tensor), last)
        owners[place.name] = last
    starts = [0.0, *(seen.begun[name].seconds for name in cuts), seen.seconds]
    whole = max(seen.seconds, 1e-9)
    costs = tuple((end - begin) / whole for begin, end in itertools.pairwise(starts))
    ends = [0, *ats, math.inf]
    elsewhere = tuple(_outside(model, seen, cuts, *span) for span in itertools.pairwise(ends))
    if any(each.draws for each in every):  # it may go another way in each pass
        elsewhere = ((),) * len(elsewhere)
    return Stages(tuple(cuts), owners, elsewhere, costs)


def _stage(every: Sequence[Seen], cuts: Sequence[str], place: int, usual: int) -> int:
    """The stage that uses a tensor first; `usual` where none does."""
    for seen in every:
        if place in seen.uses:
            return sum(seen.begun[name].at <= seen.uses[place][0] for name in cuts)
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
    number = next((name for name in first if name.isdecimal()), None)
    alone = f" (one alone: STAGES={number},)" if number else ""
    return ", ".join(first) + alone if first else "none: train it whole, without STAGES"
