"""The trials of a sweep and how each came out, in a journal that outlives a kill: Optuna's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

from host.errors import CheckpointError, LockstepError, of
from train.sweeps.points import SEED, Points
from train.sweeps.space import Axis, Choice

NAME = "journal.log"
Status = Literal["finished", "pruned", "failed", "unfinished"]
_STATUS: dict[TrialState, Status] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_PROBLEM, _FIX, _CODE = "problem", "fix", "code"
# Trials that are finished, and per cent of a training, before one may be ended early.
_BEFORE, _BEGUN = 4, 25


@dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
        values: the knobs that are varied, as they are typed.
        top1: of its last evaluation, a fraction; None where it is not finished.
        error: it failed with.
    """

    number: int
    values: dict[str, str]
    status: Status
    top1: float | None
    error: LockstepError | None


class Study:
    """Which trials there are and which comes next. One process has it at a time.

    Args:
        folder: the sweep's.

    Raises:
        CheckpointError: its journal is damaged, or cannot be read or written.
    """

    def __init__(self, folder: Path, points: Points) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.points, self._path = points, folder / NAME
        try:
            with self._kept():
                _cut(self._path)
                self._study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(self._path), _Held())),
                    study_name="sweep",
                    pruner=optuna.pruners.MedianPruner(_BEFORE, _BEGUN),
                    direction="maximize",
                    load_if_exists=True,
                )
                self.trials()
        except (LockstepError, MemoryError):
            raise
        except Exception as error:  # its lines may say anything
            raise CheckpointError(
                f"{self._path} is damaged: {error!r}",
                "restore it from a copy, or choose another --run",
            ) from error
        self._distributions = {axis.knob: _distribution(axis) for axis in points.axes}
        if points.seeds > 1:
            every = range(points.first, points.first + points.seeds)
            self._distributions[SEED] = CategoricalDistribution([*map(str, every)])

    def trials(self) -> list[Trial]:
        """All that were begun, in their order."""
        return [self._trial(each) for each in self._study.get_trials(deepcopy=False)]

    def unfinished(self) -> list[Trial]:
        """Those that were begun and did not end: the first thing to go on with."""
        return [self._begun(each) for each in self.trials() if each.status == "unfinished"]

    def next(self) -> Trial | None:
        """One that was not begun yet; None where there is none."""
        number = len(self._study.get_trials(deepcopy=False))
        if number >= self.points.total:
            return None
        self._study.sampler = self._sampler(number)
        with self._kept():
            return self._trial(self._held(self._study.ask(self._distributions).number))

    def _begun(self, trial: Trial) -> Trial:
        """The same with all its values: it may have been cut off among them."""
        self._study.sampler = self._sampler(trial.number)
        asked = self._asked(trial.number)
        with self._kept():
            for name, distribution in self._distributions.items():
                _suggest(asked, name, distribution)
        return self._trial(self._held(trial.number))

    def _sampler(self, number: int) -> BaseSampler:
        if not self.points.learns:
            return _ByNumber(self.points)
        # After a kill nobody knows what was drawn before: each trial has draws of its own.
        return TPESampler(seed=(self.points.first + number) % 2**32)

    def _held(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _asked(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._held(number)._trial_id)

    def report(self, trial: Trial, share: float, top1: float) -> bool:
        """Note an evaluation on the way, so much of the training done; whether the trial is to end,
        as it is worse there than the middle one of those that finished.
        """
        percent = round(100 * share)
        if percent >= 100:
            return False
        asked = self._asked(trial.number)
        if percent not in self._held(trial.number).intermediate_values:
            with self._kept():
                asked.report(top1, percent)
        return asked.should_prune()

    def ended(self, trial: Trial, top1: float | None, error: LockstepError | None = None) -> None:
        """Note how it came out: `top1` at its end, or why it failed; neither: it ended early."""
        number = trial.number
        with self._kept():
            if error is not None:
                asked = self._asked(number)
                said = {_PROBLEM: error.problem, _FIX: error.fix, _CODE: error.code}
                for name, value in said.items():
                    asked.set_user_attr(name, value)
                self._study.tell(number, state=TrialState.FAIL)
            elif top1 is None:
                self._study.tell(number, state=TrialState.PRUNED)
            else:
                self._study.tell(number, top1)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self._path}: {error.strerror}",
                "make room or mend its permissions, then add --resume",
            ) from error

    def _trial(self, frozen: FrozenTrial) -> Trial:
        values = {
            name: value if isinstance(value, str) else repr(value)
            for name, value in frozen.params.items()
        }
        if not self.points.learns:  # the journal has numbers as floats
            values = self.points.values(frozen.number)
        said, error = frozen.user_attrs, None
        if frozen.state == TrialState.FAIL:
            kind = of(int(said.get(_CODE, LockstepError.code)))
            error = kind(str(said.get(_PROBLEM, "it failed")), str(said.get(_FIX, "see its log")))
        return Trial(
            frozen.number,
            values,
            _STATUS.get(frozen.state, "unfinished"),
            frozen.value if frozen.state == TrialState.COMPLETE else None,
            error,
        )


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
