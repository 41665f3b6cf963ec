"""Runs that differ in their seed only, taken together; and whether others are better than they."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.experiment import changed, signature
from train.record import comparison, documents
from train.runs import compared


@dataclass(frozen=True)
class Group:
    """Finished runs of one experiment, each with a seed of its own.

    Attributes:
        runs: by seed, in their order.
        top1: of each one's last evaluation, a fraction.
        weights: SHA-256 of what was measured: each one's final weights, or their average.
    """

    runs: dict[int, Path]
    top1: list[float]
    weights: list[str]

    @property
    def mean(self) -> float:
        """Of top-1."""
        return statistics.fmean(self.top1)

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation of top-1; None of a single run."""
        return statistics.stdev(self.top1) if len(self.top1) > 1 else None


@dataclass(frozen=True)
class Better:
    """By how much a group is better than another.

    Attributes:
        difference: of the means.
        low, high: ends of its 95 % confidence interval.
        p: probability of such a difference, or a larger one, if there were none.
        paired: whether the same seeds were compared with each other (Student's t); else Welch's t.
    """

    difference: float
    low: float
    high: float
    p: float
    paired: bool


def groups(runs: Sequence[Path]) -> list[Group]:
    """The finished ones of these runs, those together that nothing else than the seed tells apart:
    no other knob that decides the result, and no data, code, package or machine. The first one's
    group comes first.

    Of several with the same seed the first counts: the same training twice says nothing more.

    Raises:
        UsageError: one is no run.
        CheckpointError: the files of one are damaged.
    """
    held: list[tuple[str, dict[str, Any], dict[int, tuple[Path, float, str]]]] = []
    for run in runs:
        record, result = compared.read(run)
        top1 = result.get("metrics", {}).get("top1")
        if result.get("status") != "finished" or not isinstance(top1, (int, float)):
            continue
        config = documents.experiment(run, record)
        key = signature(changed(config, "seed", 0))
        same = next(
            (
                some
                for known, first, some in held
                if known == key and not comparison.unlike(first, record)
            ),
            None,
        )
        if same is None:
            same = {}
            held.append((key, record, same))
        weights = result.get("ema_sha256") or result.get("weights_sha256")
        same.setdefault(config.seed, (run, float(top1), str(weights)))
    made = []
    for _, _, found in held:
        some = dict(sorted(found.items()))
        made.append(
            Group(
                {seed: run for seed, (run, _, _) in some.items()},
                [top1 for _, top1, _ in some.values()],
                [weights for _, _, weights in some.values()],
            )
        )
    return made


def better(one: Group, other: Group) -> Better | None:
    """What `other` is better by; None where there are too few runs, or all came out the same."""
    paired = [*one.runs] == [*other.runs]
    apart = [b - a for a, b in zip(one.top1, other.top1, strict=True)] if paired else []
    # Shares of a few hundred pictures often differ by the same, but for their rounding.
    spread = [apart] if paired else [one.top1, other.top1]
    varied = any(len({round(each, 12) for each in some}) > 1 for some in spread)
    if min(len(one.top1), len(other.top1)) < 2 or not varied:
        return None
    from scipy import stats  # half a second of imports

    test = (
        stats.ttest_rel(other.top1, one.top1)
        if paired
        else stats.ttest_ind(other.top1, one.top1, equal_var=False)
    )
    ends = test.confidence_interval(0.95)
    return Better(
        other.mean - one.mean, float(ends.low), float(ends.high), float(test.pvalue), paired
    )
