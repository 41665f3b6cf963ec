"""A figure's course as a line of small bars."""

import math
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_KEPT = 512  # more than a terminal is wide


class Curve:
    """A figure from its beginning on, in no more memory and time however long it is."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._each = 1  # figures in a mean
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """The next one; what is no number is left out."""
        if not math.isfinite(value):
            return
        self._open.append(value)
        if len(self._open) < self._each:
            return
        self._means.append(_mean(self._open))
        self._open = []
        if len(self._means) == _KEPT:
            self._means = [_mean(pair) for pair in zip(*[iter(self._means)] * 2, strict=True)]
            self._each *= 2

    def sparkline(self, width: int) -> str:
        """It in at most `width` characters, its least the lowest bar and its most the highest."""
        started = list(self._open)  # the training goes on meanwhile
        values = self._means + ([_mean(started)] if started else [])
        columns = max(1, min(width, len(values)))
        ends = [round(place * len(values) / columns) for place in range(columns + 1)]
        means = [_mean(values[a:b]) for a, b in pairwise(ends) if values]
        low, high = min(means, default=0.0), max(means, default=0.0)
        step = (high - low) / (len(_BARS) - 1)
        return "".join(_BARS[round((mean - low) / step) if step else 0] for mean in means)


def _mean(values: "list[float] | tuple[float, ...]") -> float:
    return sum(values) / len(values)
