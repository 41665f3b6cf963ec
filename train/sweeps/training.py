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
from train.process import outcome, parent, standing
from train.record import documents, files, metrics
from train.sweeps import results
from train.sweeps.slots import Slot
from train.sweeps.study import Trial

_LOOK = 2.0  # seconds between looks at its figures


class Training:
    """A trial on its way; it goes on from its last checkpoint where it was begun before.

    Args:
        folder: the sweep's.
        config: the trial's experiment.

    Raises:
        HostError: it cannot be started.
        CheckpointError: its experiment cannot be written.
    """

    def __init__(self, folder: Path, trial: Trial, config: Config, slot: Slot) -> None:
        self.trial, self.slot, self.config = trial, slot, config
        self.run = results.run_of(folder, trial.number)
        self.early = False  # whether it was asked to end, since it falls behind
        self._log, self._note = self.run.with_suffix(".log"), self.run.with_suffix(".end")
        self._end: LockstepError | None = None
        # A process that has just begun does not know what to do with a signal.
        self._looked, self._size = time.monotonic(), 0
        file = self.run.with_suffix(".yaml")
        words = ["fit", "--config", str(file), "--run", str(self.run), "--resume"]
        environ = {**slot.environ, outcome.VARIABLE: str(self._note)}
        try:
            files.make_directory(file.parent)
            documents.write(file, dump(config), "make room, then add --resume")
            self._note.unlink(missing_ok=True)
            with self._log.open("ab") as log:
                self._said = log.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "train.launch", *words],
                    env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                    preexec_fn=partial(_alone, slot, os.getpid()),  # noqa: PLW1509  (system calls)
                )  # fmt: skip
        except OSError as error:
            raise HostError(
                f"cannot start a training in {self.run}: {error.strerror}",
                "mend that, then add --resume",
            ) from error

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._end = outcome.read(self._note).error
            self._note.unlink(missing_ok=True)
            standing.clear(self._note)
        return code

    def stop(self) -> None:
        """Ask it to save and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it is gone."""
        self._process.wait()

    def evaluations(self) -> list[tuple[float, float]]:
        """Figures on the way: the share of the training, and top-1; now and then, if there are new
        ones.
        """
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
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(self._said)  # what stands before it is of another attempt
            lines = file.read().decode(errors="replace").splitlines()
            for kind in (of(code), Stopped):
                told = [line for line in lines if line.startswith(f"{kind.label}: ")]
                if told:
                    problem, _, fix = told[-1].partition(": ")[2].partition(" → ")
                    return kind(problem, fix)
        return of(code)(f"its process ended with code {code}", f"see {self._log}")


def _alone(slot: Slot, parent_id: int) -> None:
    """In the new process: end with the one that started it, and keep to the slot's CPUs."""
    parent.signal_on_death(signal.SIGTERM)
    if os.getppid() != parent_id:  # gone before it was said
        os._exit(128 + signal.SIGTERM)
    if slot.cpus is not None:
        os.sched_setaffinity(0, slot.cpus)
