"""Figures over time: metrics.jsonl and TensorBoard always, Weights & Biases when asked."""

import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from host.errors import CheckpointError
from train.config import Config
from train.lanes.order import consumed
from train.record import metrics, trace
from train.record.board import Board
from train.record.display import Display
from train.record.files import sync_directory
from train.record.online import Online


class Recorder:
    """Writes and shows a run's figures. Use it in a `with`, on the main process only.

    Args:
        run: the run directory.
        online: the run on Weights & Biases, which outlives the recorder.
        step, seconds: updates done already, and training time so far; records of later steps,
            from an earlier attempt, are dropped.
        measured: step of the last evaluation that counts; records of later ones are dropped.
        per_epoch, samples: training samples in an epoch, and in the whole run.
    """

    def __init__(
        self,
        run: Path,
        config: Config,
        display: Display,
        *,
        online: Online | None,
        step: int,
        seconds: float,
        measured: int,
        per_epoch: int,
        samples: int,
    ) -> None:
        self.config, self.display, self.online = config, display, online
        self.per_epoch, self.samples = per_epoch, samples
        with ExitStack() as stack:
            path = run / metrics.NAME
            try:
                metrics.cut(run, step, measured)
                trace.cut(run, step)
                self._file = stack.enter_context(path.open("a", encoding="utf-8"))
                self._trace = stack.enter_context((run / trace.NAME).open("a", encoding="utf-8"))
                self._board = stack.enter_context(Board(run / "tensorboard", config, step))
            except OSError as error:
                raise _full(str(path), error) from error
            display.begin(step)
            self._stack = stack.pop_all()  # all is open: closing is __exit__'s business now
        self._named = False  # whether the names of the files are durable
        self._last = (self._place(step)[0], seconds)  # samples and seconds at the last record

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self._stack.close()
        except OSError as error:
            if kind is None:  # else the first error says it, and closing only met it again
                raise _full(self._file.name, error) from error

    def train(
        self, step: int, seconds: float, lr: float, report: list[float], grad_norm: float
    ) -> None:
        """Record step `step`: seconds of training so far, and [loss, accuracy] of its batch."""
        samples, epoch = self._place(step)
        before, self._last = self._last, (samples, seconds)
        speed = (samples - before[0]) / max(seconds - before[1], 1e-9)
        loss, accuracy = report
        figures = {"loss": loss, "accuracy": accuracy, "lr": lr, "grad_norm": grad_norm}
        self._write("train", step, {**figures, "samples_per_second": speed})
        self.display.train(step, epoch, loss, accuracy, speed)

    def health(self, step: int, figures: dict[str, float], processes: list[dict[str, Any]]) -> None:
        """Record how the main process fared until step `step`, and, of several, each of them."""
        self._write("health", step, figures, **({"processes": processes} if processes else {}))

    def warn(self, step: int, text: str) -> None:
        """Say it, and record it as of step `step`."""
        self.display.say(f"warning: {text}")
        self._keep(metrics.WARNING, step, text=text)

    def shared(self, step: int, counts: list[int], text: str) -> None:
        """Record how many lanes each process runs after step `step`, and say so."""
        self.display.say(text)
        self._keep("shares", step, shares=counts)

    def trace(self, first: int, rows: list[tuple[float, float]]) -> None:
        """Record the [loss, gradient norm] of each step from `first` on."""
        try:
            self._trace.write(trace.lines(first, rows))
            self._trace.flush()
        except OSError as error:
            raise _full(self._trace.name, error) from error

    def sync(self) -> None:
        """Make what was written durable: a checkpoint must not be ahead of it."""
        try:
            for file in (self._file, self._trace):
                os.fsync(file.fileno())
            if not self._named:
                sync_directory(Path(self._file.name).parent)
                self._named = True
        except OSError as error:
            raise _full(self._file.name, error) from error

    def evaluation(self, step: int, figures: dict[str, float | None], *, best: bool) -> None:
        """Record the validation figures after `step` updates."""
        self._write("eval", step, figures)
        self.display.evaluation(step, self._place(step)[1], figures, best=best)

    def picture(self, name: str, picture: Image.Image, step: int) -> None:
        """Show a picture of step `step`, RGB, wherever figures are shown."""
        try:
            self._board.picture(name, picture, step)
        except OSError as error:
            raise _full(self._file.name, error) from error
        if self.online is not None:
            self.online.picture(name, picture, step)

    def _place(self, step: int) -> tuple[int, float]:
        samples = consumed(step, self.config.batch_size, self.samples)
        return samples, samples / self.per_epoch

    def _write(
        self, kind: str, step: int, figures: Mapping[str, float | None], **more: Any
    ) -> None:
        """Figures of `kind` train, eval or health, wherever they are kept.

        Args:
            more: what the file alone has.
        """
        finite = {name: _finite(value) for name, value in figures.items()}
        self._keep(kind, step, **finite, **more)
        points = {f"{kind}/{name}": value for name, value in figures.items() if value is not None}
        try:
            self._board.add(kind, step, figures)
        except OSError as error:
            raise _full(self._file.name, error) from error
        if self.online is not None:
            self.online.log({**points, "epoch": self._place(step)[1]}, step)

    def _keep(self, kind: str, step: int, **said: Any) -> None:
        """A line of metrics.jsonl; `time` is seconds since 1970."""
        samples, epoch = self._place(step)
        about = {"kind": kind, "step": step, "epoch": epoch, "samples": samples}
        try:
            self._file.write(metrics.line({**about, "time": time.time(), **said}))
            self._file.flush()
        except OSError as error:
            raise _full(self._file.name, error) from error


def _full(name: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot write {name}: {error.strerror}",
        "make room or mend the disk, then add --resume; earlier checkpoints are whole",
    )


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: FP16 may overflow a gradient, and the scaler then skips the step."""
    return value if value is not None and math.isfinite(value) else None
