"""One trial's training: a process that is an ordinary `make train`, with a log of what it says."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from host.errors import HostError, LockstepError, Stopped, of
from train.config import Config
from train.experiment import dump
from train.process import outcome, parent
from train.record import documents, files, lock, metrics
from train.sweeps import results
from train.sweeps.slots import Slot
from train.sweeps.study import Trial

_GONE = 60.0  # seconds for one that a kill left behind to save and go
_LOOK = 2.0  # seconds between looks at its figures


class Training:
    """A trial on its way; it goes on from its last checkpoint where it was begun before.

    Args:
        folder: the sweep's.
        config: the trial's experiment.
    """

    def __init__(self, folder: Path, trial: Trial, config: Config, slot: Slot) -> None:
        self.trial, self.slot, self.config = trial, slot, config
        self.run = results.run_of(folder, trial.number)
        self.early = False  # whether it was asked to end, since it falls behind
        self._log, self._said = self.run.with_suffix(".log"), self.run.with_suffix(".end")
        self._looked, self._size = 0.0, 0
        self._end: LockstepError | None = None
        file = self.run.with_suffix(".yaml")
        files.make_directory(file.parent)
        documents.write(file, dump(config), "make room, then add --resume")
        _wait(self.run)
        self._said.unlink(missing_ok=True)
        words = ["fit", "--config", str(file), "--run", str(self.run), "--resume"]
        environ = {**slot.environ, outcome.VARIABLE: str(self._said)}
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "train.launch", *words],
                    env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                    preexec_fn=partial(_alone, slot),  # noqa: PLW1509  (two system calls)
                )  # fmt: skip
        except OSError as error:
            raise HostError(
                f"cannot start a training: {error.strerror}", "mend that, then add --resume"
            ) from error

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._end = outcome.read(self._said).error
            self._said.unlink(missing_ok=True)
        return code

    def stop(self) -> None:
        """Ask it to save and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it is gone."""
        self._process.wait()

    def evaluations(self) -> list[tuple[float, float]]:
        """New figures on the way: the share of the training, and top-1; now and then."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return []
        self._looked = now
        with suppress(OSError):
            size = (self.run / metrics.NAME).stat().st_size
            if size != self._size:
                self._size = size
                return [
                    (self._share(row), row["top1"])
                    for row in metrics.read(self.run)
                    if row["kind"] == "eval" and isinstance(row.get("top1"), float)
                ]
        return []

    def _share(self, row: Mapping[str, float]) -> float:
        steps = self.config.max_steps
        return max(row["epoch"] / self.config.epochs, row["step"] / steps if steps else 0.0)

    def error(self, code: int) -> LockstepError:
        """Why it did not come to its end."""
        if self._end is not None:
            return self._end
        told = [line for line in _tail(self._log) if line.startswith(("error: ", "stopped: "))]
        if told:
            problem, _, fix = told[-1].partition(": ")[2].partition(" → ")
            return (Stopped if told[-1].startswith("stopped") else of(code))(problem, fix)
        return of(code)(f"a training ended with code {code}", f"see {self._log}")


def _alone(slot: Slot) -> None:
    parent.signal_on_death(signal.SIGTERM)
    if slot.cpus is not None:
        os.sched_setaffinity(0, slot.cpus)


def _wait(run: Path) -> None:
    """Let one that outlived a killed sweep save and go: nobody else may write beside it."""
    until = time.monotonic() + _GONE
    while lock.is_held(run) and time.monotonic() < until:
        time.sleep(0.2)


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - (1 << 16)))
        return file.read().decode(errors="replace").splitlines()
