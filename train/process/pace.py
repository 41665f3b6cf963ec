"""Whom the others wait for: each process's own time in a step, beside the others'.

Processes that train together take steps of one length, as the fast ones wait for the slowest. What
tells them apart is how long each computes and waits for its data.
"""

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from host import launcher
from host.lanes import MEASURED

# One is slow from here on, beside the others' median; and only where it takes so much of the step.
_BEHIND, _COSTS = 1.2, 0.1
# Where shares are uneven, and no others would be better, it is slow from here on.
_FAR = 1.5


@dataclass(frozen=True)
class Member:
    """A process of the training, and how it fared in some steps.

    Attributes:
        host: its machine's name.
        gpu: the number of its GPU there; None on the CPU.
        figures: as `Health.take` returns them.
        complaints: what is wrong with it, by kind.
        lanes: how many of a step's it runs.
    """

    rank: int
    host: str
    gpu: int | None
    figures: Mapping[str, float]
    complaints: Mapping[str, str]
    lanes: int = 1

    @property
    def step(self) -> float:
        """Seconds that a step took, with all that it waited for."""
        return self.figures["step_seconds"]

    @property
    def own(self) -> float:
        """Seconds of a step that it spent on its own data and lanes."""
        return self.step * (1.0 - self.figures["communication_share"])

    @property
    def name(self) -> str:
        """For people."""
        what = f"process {self.rank}" if self.gpu is None else f"GPU {self.gpu}"
        return f"{what} of {self.host}"

    def row(self) -> dict[str, Any]:
        """As metrics.jsonl has it."""
        held = asdict(self)
        return {**{name: held[name] for name in ("rank", "host", "gpu", "lanes")}, **self.figures}


def member(
    rank: int,
    device: torch.device,
    figures: Mapping[str, float],
    complaints: Mapping[str, str],
    lanes: int,
) -> Member:
    """This process."""
    gpu = launcher.local_rank() if device.type == "cuda" else None
    return Member(rank, platform.node(), gpu, figures, complaints, lanes)


def slowest(members: Sequence[Member]) -> tuple[Member, float]:
    """The one that the others wait for, and its own time over their median: 1.3 is 30 % more."""
    last = max(members, key=lambda each: each.own)
    others = [each.own for each in members if each is not last]
    return last, last.own / max(statistics.median(others), 1e-9)


def complaint(members: Sequence[Member], *, way: str | None = None) -> str | None:
    """What to say of the slowest of several; None where it is about as fast as the others.

    Args:
        way: how another could run some of its lanes: `SHARES` told so, or `auto`, by itself.
    """
    last, ratio = slowest(members)
    others_each = [each.own / each.lanes for each in members if each is not last]
    # With more lanes than the others it may take longer, and be as fast.
    ratio_of_all = ratio
    ratio = min(ratio, last.own / last.lanes / max(statistics.median(others_each), 1e-9))
    lost = last.own * (1 - 1 / ratio)
    if ratio < _BEHIND or lost < _COSTS * last.step:
        return None
    other = _told(members, way)
    uneven = len({each.lanes for each in members}) > 1
    if uneven and not other and ratio_of_all < _FAR:  # as good as it can be
        return None
    others = [each for each in members if each is not last]
    waits = [each.step * each.figures["data_share"] for each in others]
    data = last.step * last.figures["data_share"] - statistics.median(waits)
    figures = last.figures
    state = [f"{figures['gpu_temperature']:.0f} °C"] if "gpu_temperature" in figures else []
    state += [f"{figures['gpu_power']:.0f} W"] if "gpu_power" in figures else []
    state += ["slowed down by heat or power"] if figures.get("gpu_throttled", 0) > 0.5 else []
    # Half of what it loses, or more: it does not compute more slowly, it waits.
    cause = f"it waits {1000 * data:.0f} ms longer for data" if data > lost / 2 else ""
    cause = cause or (", ".join(state) if state else "look what else runs there")
    return (
        f"{last.name} takes {100 * (ratio - 1):.0f} % longer for its part of a step than the others"
        f" do, {1000 * last.own:.0f} ms: all wait for it ({cause}){other}"
    )


def better(members: Sequence[Member]) -> tuple[list[int], float] | None:
    """How many lanes each should run, and the seconds of a step's longest part then; None where
    no other way is faster by much.
    """
    counts, longest = shared(
        [each.own / each.lanes for each in members], sum(each.lanes for each in members)
    )
    now = max(each.own for each in members)
    return (counts, longest) if longest <= (1 - _COSTS) * now else None


def _told(members: Sequence[Member], way: str | None) -> str:
    """Of other shares that are faster, for people."""
    found = better(members) if way else None
    if found is None:
        return ""
    counts, longest = ",".join(map(str, found[0])), 1000 * found[1]
    if way == MEASURED:
        return f"; the next checkpoint shares the lanes anew: {counts}, about {longest:.0f} ms"
    return f"; if it stays so, SHARES={counts} and --resume would take about {longest:.0f} ms"


def shared(seconds: Sequence[float], lanes: int) -> tuple[list[int], float]:
    """How to share lanes among processes that need so many seconds for one: the longest is least.

    Returns:
        The number of each, one at least; and the seconds of the one that takes the longest.
    """
    counts = [1] * len(seconds)
    for _ in range(lanes - len(seconds)):
        ends = [(count + 1) * each for count, each in zip(counts, seconds, strict=True)]
        # Of equals the faster one: the other's speed is the one in doubt.
        counts[min(range(len(ends)), key=lambda rank: (ends[rank], seconds[rank]))] += 1
    return counts, max(count * each for count, each in zip(counts, seconds, strict=True))
