"""The values of trials as Optuna has them: by their numbers, or proposed from those before."""

from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from train.sweeps.points import SEED, Points
from train.sweeps.space import Axis, Choice


def distributions(points: Points) -> dict[str, BaseDistribution]:
    """What each knob may be."""
    found = {axis.knob: _distribution(axis) for axis in points.axes}
    if points.seeds > 1:
        every = range(points.first, points.first + points.seeds)
        found[SEED] = CategoricalDistribution([*map(str, every)])
    return found


def sampler(points: Points, number: int) -> BaseSampler:
    """What gives a trial its values."""
    if not points.learns:
        return _ByNumber(points)
    # After a kill nobody knows what was drawn before: each trial has draws of its own.
    return TPESampler(seed=(points.first + number) % 2**32)


def values(points: Points, frozen: FrozenTrial) -> dict[str, str]:
    """Those of a trial, as they are typed."""
    if not points.learns:  # the journal has numbers as floats
        return points.values(frozen.number)
    params = frozen.params.items()
    return {name: value if isinstance(value, str) else repr(value) for name, value in params}


def suggest(asked: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    """Have a trial's knob get its value, if it has none yet."""
    if isinstance(distribution, CategoricalDistribution):
        asked.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        asked.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        asked.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


class _ByNumber(BaseSampler):
    """Values that follow from a trial's number."""

    def __init__(self, points: Points) -> None:
        self.points = points

    def infer_relative_search_space(self, *_about: Any) -> dict[str, BaseDistribution]:
        """None: each value by itself."""
        return {}

    def sample_relative(self, *_about: Any) -> dict[str, Any]:
        """None: each value by itself."""
        return {}

    def sample_independent(
        self, _study: Any, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """The value of one knob, as Optuna has it."""
        text = self.points.values(trial.number)[name]
        return text if isinstance(distribution, CategoricalDistribution) else _number(text)


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _number(text: str) -> float | int:
    with suppress(ValueError):
        return int(text)
    return float(text)
