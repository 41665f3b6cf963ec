"""Search for the largest number that fits: doubling, then bisection."""

from dataclasses import dataclass

ROOM = 0.9
"""Share of the memory that a try may take: evaluation, saves and fragments need the rest."""
# Where the largest that fits and the smallest that does not are as near as this, it is found.
_NEAR = 1 / 16


@dataclass
class Search:
    """Attributes:
    low: the largest that is known to fit; 0: none.
    high: the smallest that is known not to; None: none.
    most: larger ones are of no interest.
    """

    low: int = 0
    high: int | None = None
    most: int = 1 << 20

    def next(self) -> int | None:
        """The number to try; None where the answer, `low`, is found."""
        if self.high is None:
            trial = min(max(1, 2 * self.low), self.most)
            return trial if trial > self.low else None
        if self.high - self.low <= max(1, int(self.low * _NEAR)):
            return None
        return (self.low + self.high) // 2

    def fits(self, number: int) -> None:
        """It was tried, and there was room."""
        self.low = max(self.low, number)

    def fails(self, number: int) -> None:
        """It was tried, and there was none."""
        self.high = number if self.high is None else min(self.high, number)
