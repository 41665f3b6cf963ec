"""The trials of a sweep and how each came out, in a journal that outlives a kill: Optuna's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from host.errors import CheckpointError, LockstepError, of
from train.sweeps import journal, proposing
from train.sweeps.points import Points
from train.sweeps.spec import BEFORE_PRUNING

Status = Literal["finished", "pruned", "failed", "unfinished"]
_STATUS: dict[TrialState, Status] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_PROBLEM, _FIX, _CODE = "problem", "fix", "code"
_BEGUN = 25  # per cent of a training, before it may be ended early


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
        self.points, self._path = points, folder / journal.NAME
        try:
            with self._kept():
                self._study = optuna.create_study(
                    storage=journal.opened(self._path),
                    study_name="sweep",
                    pruner=optuna.pruners.MedianPruner(BEFORE_PRUNING, _BEGUN),
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
        self._distributions = proposing.distributions(points)

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
        self._study.sampler = proposing.sampler(self.points, number)
        with self._kept():
            return self._trial(self._held(self._study.ask(self._distributions).number))

    def _begun(self, trial: Trial) -> Trial:
        """The same with all its values: it may have been cut off among them."""
        self._study.sampler = proposing.sampler(self.points, trial.number)
        asked = self._asked(trial.number)
        with self._kept():
            for name, distribution in self._distributions.items():
                proposing.suggest(asked, name, distribution)
        return self._trial(self._held(trial.number))

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
        said, error = frozen.user_attrs, None
        if frozen.state == TrialState.FAIL:
            kind = of(int(said.get(_CODE, LockstepError.code)))
            error = kind(str(said.get(_PROBLEM, "it failed")), str(said.get(_FIX, "see its log")))
        return Trial(
            frozen.number,
            proposing.values(self.points, frozen),
            _STATUS.get(frozen.state, "unfinished"),
            frozen.value if frozen.state == TrialState.COMPLETE else None,
            error,
        )
