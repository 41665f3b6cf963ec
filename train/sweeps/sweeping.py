"""A sweep: trials begun, watched and noted, until there is none left; killed, it goes on."""

import time
from collections import deque
from pathlib import Path

from host.errors import (
    DataError,
    DivergedError,
    LockstepError,
    OutOfMemory,
    Stopped,
    UsageError,
)
from train.process.interrupt import StopFlag
from train.sweeps import results
from train.sweeps import spec as specs
from train.sweeps.slots import Slot
from train.sweeps.spec import Spec
from train.sweeps.study import Study, Trial
from train.sweeps.training import Training

# What a trial may fail with by itself; anything else is wrong with more than it.
_OWN = (UsageError, DataError, DivergedError, OutOfMemory)
_HOPELESS = 5  # trials that failed before one was finished


class Sweep:
    """Use it in a `with`: what runs when the block ends is asked to save, and waited for.

    Args:
        folder: its own; the caller holds its lock.
    """

    def __init__(self, folder: Path, spec: Spec, study: Study, slots: list[Slot]) -> None:
        self.folder, self.spec, self.study = folder, spec, study
        self._free = list(reversed(slots))
        self._again = deque(study.unfinished())
        self._running: list[Training] = []
        self._last: LockstepError | None = None  # that a trial failed with
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
            LockstepError: something is wrong with more than one trial.
        """
        while True:
            while self._free and (trial := self._next()):
                self._begin(trial)
            if not self._running:
                self._check()
                return
            time.sleep(0.1)
            if stop:
                raise Stopped(
                    f"trials of {self.folder} were stopped, and have saved",
                    f"to go on: make sweep RUN={self.folder} ARGS=--resume (without make: sweep"
                    f" --run {self.folder} --resume)",
                )
            for each in [each for each in self._running if not self._look(each)]:
                self._running.remove(each)
                self._free.append(each.slot)

    def _check(self) -> None:
        """See that something came of it: else it ends as its trials did."""
        every = self.study.trials()
        if any(each.status == "finished" for each in every):
            return
        kind = type(self._last) if self._last else UsageError
        why = f": {self._last.problem}" if self._last else ""
        raise kind(f"no trial was finished{why}", f"see the trials' logs in {self.folder}")

    def _next(self) -> Trial | None:
        return self._again.popleft() if self._again else self.study.next()

    def _begin(self, trial: Trial) -> None:
        result = results.result(self.folder, trial.number)
        if result is not None:  # it was finished when the sweep was killed
            self._finished(trial, result)
            return
        try:
            config = self.spec.experiment(specs.kept(self.folder, self.spec), trial.values)
        except UsageError as error:
            self._failed(trial, error)
            return
        self._say(trial, "begins")
        self._running.append(Training(self.folder, trial, config, self._free.pop()))

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
        result = results.result(self.folder, each.trial.number) if code == 0 else None
        if result is not None:
            self._finished(each.trial, result)
        elif each.early and code == Stopped.code:
            self.study.ended(each.trial, None)
            self._say(each.trial, "ends early: it falls behind")
        else:
            error = each.error(code)
            if not isinstance(error, _OWN):
                raise type(error)(f"trial {each.trial.number}: {error.problem}", error.fix)
            self._failed(each.trial, error)
        return False

    def _finished(self, trial: Trial, result: results.Result) -> None:
        self.study.ended(trial, result.top1)
        best = max(each.top1 for each in self.study.trials() if each.top1 is not None)
        mark = "  best" * (result.top1 == best)
        self._say(trial, f"top-1 {100 * result.top1:6.2f} %  {result.seconds:,.0f} s{mark}")

    def _failed(self, trial: Trial, error: LockstepError) -> None:
        self._last = error
        self.study.ended(trial, None, error)
        self._say(trial, f"failed: {error.problem}")
        every = self.study.trials()
        failed = [each for each in every if each.status == "failed"]
        if len(failed) >= _HOPELESS and not any(each.status == "finished" for each in every):
            raise type(error)(
                f"all of the first {len(failed)} trials failed, the last since {error.problem}",
                error.fix,
            )

    def _say(self, trial: Trial, what: str) -> None:
        values = "  ".join(f"{name}={value}" for name, value in trial.values.items())
        print(f"trial {trial.number:>{self._width}}  {values}  {what}", flush=True)
