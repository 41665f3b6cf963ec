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

# One is slow from here on, beside the others' median; and only where it takes so much of the step.
_BEHIND, _COSTS = 1.2, 0.1


@dataclass(frozen=True)
class Member:
    """A process of the training, and how it fared in some steps.

    Attributes:
        host: its machine's name.
        gpu: the number of its GPU there; None on the CPU.
        figures: as `Health.take` returns them.
        complaints: what is wrong with it, by kind.
    """

    rank: int
    host: str
    gpu: int | None
    figures: Mapping[str, float]
    complaints: Mapping[str, str]

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
        return {**{name: held[name] for name in ("rank", "host", "gpu")}, **self.figures}


def member(
    rank: int, device: torch.device, figures: Mapping[str, float], complaints: Mapping[str, str]
) -> Member:
    """This process."""
    gpu = launcher.local_rank() if device.type == "cuda" else None
    return Member(rank, platform.node(), gpu, figures, complaints)


def slowest(members: Sequence[Member]) -> tuple[Member, float]:
    """The one that the others wait for, and its own time over their median: 1.3 is 30 % more."""
    last = max(members, key=lambda each: each.own)
    others = [each.own for each in members if each is not last]
    return last, last.own / max(statistics.median(others), 1e-9)


def complaint(members: Sequence[Member]) -> str | None:
    """What to say of the slowest of several; None where it is about as fast as the others."""
    last, ratio = slowest(members)
    lost = last.own * (1 - 1 / ratio)
    if ratio < _BEHIND or lost < _COSTS * last.step:
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
        f" do, {1000 * last.own:.0f} ms: all wait for it ({cause})"
    )
