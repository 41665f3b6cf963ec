"""What the probabilities of a validation set say of its pictures, its labels and themselves."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from train.predictions.table import Said

_BINS = 15  # of calibration, as Guo et al. have them


@dataclass(frozen=True)
class Bin:
    """Pictures whose class has about the same probability.

    Attributes:
        low, high: of the probability.
        confidence: the mean probability of the class that was predicted.
        right: the share of them that are of that class.
    """

    low: float
    high: float
    count: int
    confidence: float
    right: float


def mistakes(said: Sequence[Said], most: int) -> list[Said]:
    """Those that were taken for another class, the largest loss first."""
    wrong = [each for each in said if each.predicted != each.label]
    return sorted(wrong, key=lambda each: (-_order(each.loss), each.number))[:most]


def doubtful(said: Sequence[Said], most: int) -> list[Said]:
    """Those whose label is doubtful, the most doubtful first.

    As in confident learning (Northcutt et al., 2021): the model names another class, and is as
    sure of it as it is, on average, of pictures that have it as their label. The order is that of
    the margin between both probabilities.
    """
    sure: dict[str, list[float]] = defaultdict(list)
    for each in said:
        sure[each.label].append(each.truth)
    usual = {label: fmean(shares) for label, shares in sure.items()}
    found = [
        each
        for each in said
        # Of a class that no picture is labelled with, nothing is known.
        # And nothing can be compared with what is no number.
        if each.predicted != each.label and each.probability >= usual.get(each.predicted, math.inf)
    ]
    return sorted(found, key=lambda each: (each.truth - each.probability, each.number))[:most]


def calibration(said: Sequence[Said]) -> tuple[list[Bin], float]:
    """Bins of equal width that hold a picture, and the expected calibration error (Guo et al.,
    2017): the mean distance between probability and share of right ones, weighted by pictures. What
    is no number is left out.
    """
    said = [each for each in said if math.isfinite(each.probability)]
    held: dict[int, list[Said]] = defaultdict(list)
    for each in said:
        # Probability 0 belongs to the first bin, and an upper edge to the bin below it.
        held[min(_BINS - 1, max(0, math.ceil(each.probability * _BINS) - 1))].append(each)
    bins = [
        Bin(
            place / _BINS,
            (place + 1) / _BINS,
            len(some),
            fmean(each.probability for each in some),
            fmean(each.predicted == each.label for each in some),
        )
        for place, some in sorted(held.items())
    ]
    error = sum(each.count * abs(each.confidence - each.right) for each in bins)
    return bins, error / max(1, len(said))


def _order(loss: float) -> float:
    """A loss that is no number is worse than any."""
    return math.inf if math.isnan(loss) else loss
