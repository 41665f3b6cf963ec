"""A sweep: trials begun, watched and noted, until there is none left; killed, it goes on."""

import os
import shlex
import time
from pathlib import Path

from host import TOLD
from host.errors import (
    CheckpointError,
    DivergedError,
    HostError,
    LockstepError,
    OutOfMemory,
    Stopped,
    UsageError,
)
from host.text import printable
from train.config import Config
from train.experiment import differences
from train.process.interrupt import StopFlag
from train.record import documents, lock
from train.sweeps import results
from train.sweeps.results import Result
from train.sweeps.slots import Slot
from train.sweeps.spec import Spec
from train.sweeps.study import Study, Trial
from train.sweeps.training import Training

# What a trial may fail with by itself; anything else is wrong with more than it.
_OWN = (UsageError, DivergedError, OutOfMemory)
_HOPELESS = 5  # trials that failed, and none that did not
_GONE = 60.0  # seconds for a trainer that a kill left behind to save and go


class Sweep:
    """Use it in a `with`: what runs when the block ends is asked to save, and waited for.

    Args:
        folder: its own; the caller holds its lock.
    """

    def __init__(self, folder: Path, spec: Spec, study: Study, slots: list[Slot]) -> None:
        self.folder, self.spec, self.study = folder, spec, study
        self._free = list(reversed(slots))
        self._again = study.unfinished()
        self._running: list[Training] = []
        self._begin_by = time.monotonic() + _GONE
        self._width = len(str(study.points.total - 1))

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self._running:
            each.stop()
        for each in self._running:
            each.wait()

    def run(self, stop: StopFlag) -> None:
        """Train until no trial is left.

        Raises:
            Stopped: a signal asked for it.
            LockstepError: something is wrong with more than one trial, or all have failed.
        """
        while True:
            while self._free and (trial := self._next()):
                self._begin(trial)
            if not self._running and not self._again:
                self._check()
                return
            time.sleep(0.1)
            if stop:
                raise self._stopped()
            for each in [each for each in self._running if not self._look(each)]:
                self._running.remove(each)
                self._free.append(each.slot)

    def _stopped(self) -> Stopped:
        name = shlex.quote(str(self.folder))
        told = [w for w in shlex.split(os.environ.get(TOLD, "")) if not w.startswith("N=")]
        words = shlex.join([*told, f"RUN={self.folder}", "ARGS=--resume"])
        return Stopped(
            f"the trials of {self.folder} were stopped; what they had done is saved",
            f"to go on: make sweep {words} (without make: sweep --run {name} --resume)",
        )

    def _check(self) -> None:
        """See that something came of it: else it ends as its trials did."""
        every = self.study.trials()
        errors = [each.error for each in every if each.error is not None]
        if errors and not any(each.status == "finished" for each in every):
            last = errors[-1]
            raise type(last)(
                f"no trial of {self.folder} was finished: {last.problem}",
                f"{last.fix}; each one's log is in {self.folder / 'trials'}",
            )

    def _next(self) -> Trial | None:
        """The next trial that can begin; the trainer of one that was killed may still save."""
        for trial in self._again:
            if not lock.is_held(results.run_of(self.folder, trial.number)):
                self._again.remove(trial)
                return trial
        if self._again and time.monotonic() > self._begin_by:
            run = results.run_of(self.folder, self._again[0].number)
            raise HostError(
                f"another process still writes {run}", "stop it, or wait for it; then add --resume"
            )
        return self.study.next()

    def _begin(self, trial: Trial) -> None:
        try:
            config = self.spec.experiment(trial.values)
        except UsageError as error:
            self._failed(trial, error)
            return
        result = self._result(trial, config)
        if result is not None:  # it was finished when the sweep was killed
            self._finished(trial, result)
            return
        begun = (results.run_of(self.folder, trial.number) / documents.RECORD).exists()
        self._say(trial, "goes on" if begun else "begins")
        self._running.append(Training(self.folder, trial, config, self._free.pop()))

    def _result(self, trial: Trial, config: Config) -> Result | None:
        """What came of the trial's run, if that is finished."""
        found = results.result(self.folder, trial.number)
        run = results.run_of(self.folder, trial.number)
        record = documents.record(run) if found else None
        if record is not None and differences(config, documents.experiment(run, record)):
            raise CheckpointError(
                f"{run} is a run of another experiment than trial {trial.number}",
                "move it away, or choose another --run",
            )
        return found

    def _look(self, each: Training) -> bool:
        """Whether it still runs."""
        code = each.poll()
        if code is None:
            if self.spec.prune and not each.early:
                each.early = any(
                    self.study.report(each.trial, share, top1) for share, top1 in each.evaluations()
                )
                if each.early:
                    each.stop()
            return True
        result = self._result(each.trial, each.config)
        if result is not None:
            self._finished(each.trial, result)
        elif each.early:
            self.study.ended(each.trial, None)
            self._say(each.trial, "ends early: it falls behind")
        else:
            error = each.error(code)
            if isinstance(error, Stopped):  # by somebody else
                raise self._stopped()
            if not isinstance(error, _OWN):
                raise type(error)(f"trial {each.trial.number}: {error.problem}", error.fix)
            self._failed(each.trial, error)
        return False

    def _finished(self, trial: Trial, result: Result) -> None:
        before = [each.top1 for each in self.study.trials() if each.top1 is not None]
        self.study.ended(trial, result.top1)
        # Of several seeds a mean is best, and no single training.
        best = self.study.points.seeds == 1 and result.top1 > max(before, default=-1.0)
        done = sum(each.status != "unfinished" for each in self.study.trials())
        self._say(
            trial,
            f"top-1 {100 * result.top1:6.2f} %  {result.seconds:,.0f} s"
            f"  {done} of {self.study.points.total}{'  best' * best}",
        )

    def _failed(self, trial: Trial, error: LockstepError) -> None:
        self.study.ended(trial, None, error)
        self._say(trial, f"failed: {error.problem}")
        every = self.study.trials()
        if len(every) >= _HOPELESS and all(each.status == "failed" for each in every):
            raise type(error)(
                f"all {len(every)} trials so far failed, the last one with: {error.problem}",
                error.fix,
            )

    def _say(self, trial: Trial, what: str) -> None:
        values = "  ".join(f"{name}={value}" for name, value in trial.values.items())
        print(printable(f"trial {trial.number:>{self._width}}  {values}  {what}"), flush=True)
