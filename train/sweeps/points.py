"""Which values a trial has, by its number alone: for sweeps that do not learn on the way."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from host.errors import UsageError
from train.sweeps.space import Axis, Span

SEED = "seed"
_MOST = 10_000


@dataclass(frozen=True)
class Points:
    """The trials of a sweep in their order.

    Attributes:
        axes: what is varied, but for the seeds that each point is repeated with.
        first: the first seed; it decides what is drawn as well.
        seeds: how many a point is repeated with; the next trial has the next seed.
        drawn: how many points are drawn; None: all combinations, the last axis varying fastest.
        learns: whether values are proposed from how other trials came out, and not by number.
    """

    axes: tuple[Axis, ...]
    first: int
    seeds: int
    drawn: int | None
    learns: bool = False

    @property
    def total(self) -> int:
        """How many trials there are."""
        return (self._combinations if self.drawn is None else self.drawn) * self.seeds

    @property
    def _combinations(self) -> int:
        return math.prod(axis.count for axis in self.axes)

    @property
    def names(self) -> list[str]:
        """The knobs that a trial has values of."""
        return [*(axis.knob for axis in self.axes), *[SEED] * (self.seeds > 1)]

    def values(self, number: int) -> dict[str, str]:
        """Those of a trial, as they are typed."""
        point, repeat = divmod(number, self.seeds)
        if self.drawn is None:
            found = self._combined(point)
        elif finite(self.axes):
            found = self._combined(self._shuffled[point])
        else:
            found = self._spread(point)
        return found | ({SEED: str(self.first + repeat)} if self.seeds > 1 else {})

    def _combined(self, point: int) -> dict[str, str]:
        found = {}
        for axis in reversed(self.axes):
            point, place = divmod(point, axis.count)
            found[axis.knob] = axis.value(place)
        return {axis.knob: found[axis.knob] for axis in self.axes}

    @cached_property
    def _shuffled(self) -> list[int]:
        """The combinations in an order that looks like none, so that no two points are the same."""

        def key(place: int) -> bytes:
            return hashlib.sha256(f"{self.first} {place}".encode()).digest()

        return sorted(range(self._combinations), key=key)

    def _spread(self, point: int) -> dict[str, str]:
        """Drawn so that they fill the space evenly, however many there are: Sobol's sequence,
        scrambled (Owen, 1998).
        """
        from scipy.stats import qmc  # half a second of imports

        sequence = qmc.Sobol(len(self.axes), rng=self.first)
        if point:
            sequence.fast_forward(point)
        shares = sequence.random(1)[0].tolist()
        return {axis.knob: axis.at(share) for axis, share in zip(self.axes, shares, strict=True)}


def finite(axes: Sequence[Axis]) -> bool:
    """Whether there is an end of their combinations, near enough to count them."""
    ends = all(not isinstance(axis, Span) or (axis.whole and not axis.log) for axis in axes)
    return ends and math.prod(axis.count for axis in axes) <= _MOST


def check(axes: Sequence[Axis], trials: int | None, seeds: int) -> None:
    """See that there are trials, and not too many.

    Raises:
        UsageError: naming what there is too much or too little of.
    """
    if trials is not None and not axes:
        raise UsageError("--trials without --over", "name a knob and its values: --over")
    if not axes and seeds < 2:
        raise UsageError("nothing is varied", "name a knob and its values, --over, or --seeds 2")
    if seeds > 1 and any(axis.knob == SEED for axis in axes):
        raise UsageError("--seeds and --over seed=…", "take one of the two away")
    if trials is not None:
        count = trials * seeds
        if finite(axes) and trials > (most := math.prod(axis.count for axis in axes)):
            raise UsageError(
                f"--trials {trials}, and there are {most} combinations", "take --trials away"
            )
    else:
        _check_listed(axes)
        count = seeds * math.prod(axis.count for axis in axes)
    if count > _MOST:
        raise UsageError(f"that is {count:,} trials", "ask for fewer: --trials 20")


def _check_listed(axes: Sequence[Axis]) -> None:
    for axis in axes:
        if isinstance(axis, Span) and not axis.whole:
            raise UsageError(
                f"--over {axis.knob}={axis.low:g}..{axis.high:g} has numbers without end",
                "say how many are to be tried, --trials 20, or list some: KNOB=VALUE,VALUE",
            )
        if isinstance(axis, Span) and axis.log:
            raise UsageError(
                f"--over {axis.knob}: log does nothing where each number has its turn",
                "take log: away, or draw some of them: --trials 20",
            )
