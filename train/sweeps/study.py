"""The trials of a sweep and how each came out, in a journal that outlives a kill: Optuna's."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial, TrialState

from host.errors import CheckpointError, LockstepError
from train.sweeps.points import SEED, Points
from train.sweeps.space import Axis, Choice

NAME = "journal.log"
Status = Literal["finished", "pruned", "failed", "unfinished"]
_STATUS: dict[TrialState, Status] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_WHY = "why"
# Trials that are finished, and per cent of a training, before one may be ended early.
_BEFORE, _BEGUN = 4, 25


@dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
        values: the knobs that are varied, as they are typed.
        top1: of its last evaluation, a fraction; None where it is not finished.
        why: it failed.
    """

    number: int
    values: dict[str, str]
    status: Status
    top1: float | None
    why: str


class Study:
    """Which trials there are and which comes next. One process has it at a time.

    Args:
        folder: the sweep's.
        learns: whether values are proposed from how other trials came out (TPE), and not by number.

    Raises:
        CheckpointError: its journal is damaged.
    """

    def __init__(self, folder: Path, points: Points, *, learns: bool) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.points, self._learns = points, learns
        path = folder / NAME
        _cut(path)
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path), _Held())),
                study_name="sweep",
                pruner=optuna.pruners.MedianPruner(_BEFORE, _BEGUN),
                direction="maximize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}", "restore it from a copy, or choose another --run"
            ) from error
        self._distributions = {axis.knob: _distribution(axis) for axis in points.axes}
        if points.seeds > 1:
            last = points.first + points.seeds - 1
            self._distributions[SEED] = IntDistribution(points.first, last)

    def trials(self) -> list[Trial]:
        """All that were begun, in their order."""
        return [_trial(each) for each in self._study.get_trials(deepcopy=False)]

    def unfinished(self) -> list[Trial]:
        """Those that were begun and did not end: the first thing to go on with."""
        return [self._begun(each) for each in self.trials() if each.status == "unfinished"]

    def next(self) -> Trial | None:
        """One that was not begun yet; None where there is none."""
        number = len(self._study.get_trials(deepcopy=False))
        if number >= self.points.total:
            return None
        self._study.sampler = self._sampler(number)
        return _trial(self._held(self._study.ask(self._distributions).number))

    def _begun(self, trial: Trial) -> Trial:
        """The same with all its values: it may have been cut off among them."""
        self._study.sampler = self._sampler(trial.number)
        asked = self._asked(trial.number)
        for name, distribution in self._distributions.items():
            _suggest(asked, name, distribution)
        return _trial(self._held(trial.number))

    def _sampler(self, number: int) -> BaseSampler:
        # After a kill nobody knows what was drawn before: each trial has draws of its own.
        seed = self.points.first + number
        return TPESampler(seed=seed) if self._learns else _ByNumber(self.points)

    def _held(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _asked(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._held(number)._trial_id)

    def report(self, trial: Trial, share: float, top1: float) -> bool:
        """Note an evaluation on the way, so much of the training done; whether the trial is to end,
        as it is worse there than the middle one of those that finished.
        """
        percent = round(100 * share)
        if percent >= 100 or percent in self._held(trial.number).intermediate_values:
            return False
        asked = self._asked(trial.number)
        asked.report(top1, percent)
        return asked.should_prune()

    def ended(self, trial: Trial, top1: float | None, error: LockstepError | None = None) -> None:
        """Note how it came out: `top1` at its end, or why it failed; neither: it ended early."""
        number = trial.number
        if error is not None:
            self._asked(number).set_user_attr(_WHY, str(error))
            self._study.tell(number, state=TrialState.FAIL)
        elif top1 is None:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, top1)


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


class _Held(BaseJournalFileLock):
    """No lock of its own, which a kill would leave behind: who has the sweep's folder has this."""

    def acquire(self) -> bool:
        """It is held."""
        return True

    def release(self) -> None:
        """It stays."""


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _suggest(asked: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    if isinstance(distribution, CategoricalDistribution):
        asked.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        asked.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        asked.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _trial(frozen: FrozenTrial) -> Trial:
    return Trial(
        frozen.number,
        {
            name: value if isinstance(value, str) else repr(value)
            for name, value in frozen.params.items()
        },
        _STATUS.get(frozen.state, "unfinished"),
        frozen.value if frozen.state == TrialState.COMPLETE else None,
        str(frozen.user_attrs.get(_WHY, "")),
    )


def _number(text: str) -> float | int:
    with suppress(ValueError):
        return int(text)
    return float(text)


def _cut(path: Path) -> None:
    """Drop a last line that a crash left half written: the next one would be written behind it."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        os.fsync(file.fileno())
