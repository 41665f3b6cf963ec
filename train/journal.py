"""What is written down of a run on its way."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from host import launcher
from host.errors import DivergedError, Stopped
from train.measure import Metrics
from train.parts import Parts
from train.process import standing
from train.process.clock import Clock
from train.record import rundir, spread
from train.record.background import Background
from train.record.resume import State
from train.record.saver import Held
from train.record.spread import Spread


class Journal:
    """What is written down of a run on its way: its trace, its evaluations, its checkpoints.

    Figures of a step stay on the device until something is due: reading them waits for it.
    """

    def __init__(self, parts: Parts, state: State) -> None:
        self.parts, self.state = parts, state
        self.clock = Clock(state.seconds)
        # A resumed run starts from a checkpoint, which other machines may not see.
        there = parts.runtime.from_main(parts.saver.holds(state.step))
        self._saved = state.step if there else None
        self._compared = self._saved
        self._writing = Background()
        self._unread: list[Tensor] = []
        # An overflowing gradient is no harm under FP16: the scaler skips the step.
        self._scaled = parts.runtime.accelerator.mixed_precision == "fp16"

    def keep(self, report: Tensor, norm: Tensor) -> None:
        """Keep the loss and the gradient's norm of the step that was just done."""
        self._unread.append(torch.stack((report[0], norm)))
        if self.parts.recorder:
            self.parts.recorder.display.moved(self.state.step)

    def settle(self) -> None:
        """Wait for the device, write the trace, and look whether all steps were sound.

        Raises:
            DivergedError: naming the first step whose loss or gradient is not finite.
        """
        self.state.seconds = self.clock.read()
        if not self._unread:
            return
        rows: list[tuple[float, float]] = torch.stack(self._unread).tolist()
        first = self.state.step - len(rows) + 1
        self._unread = []
        if self.parts.recorder:
            self.parts.recorder.trace(first, rows)
        for step, (loss, norm) in enumerate(rows, first):
            if not math.isfinite(loss) or not (self._scaled or math.isfinite(norm)):
                raise DivergedError(
                    f"the loss or its gradient is not finite at step {step}",
                    "lower --optim.lr, or warm up longer"
                    + ", or set --optim.clip 1" * (self.parts.config.optim.clip is None),
                )

    def compare(self) -> None:
        """Look whether all processes still hold the same bits."""
        if self.parts.tripwire and self._compared != self.state.step:
            self.parts.tripwire.check(self.state.step)
            self._compared = self.state.step

    def measure(self) -> Metrics:
        """Evaluate, and write the figures down.

        Raises:
            Stopped: a signal came before the figures were complete.
        """
        parts, state = self.parts, self.state
        if parts.recorder:
            parts.recorder.display.measuring()
        try:
            with self.clock.paused():
                metrics = parts.measure()
        except Stopped:
            self.stop()
        improved = metrics.top1 > state.best_top1
        if improved:
            state.best_step, state.best_top1 = state.step, metrics.top1
            if self._saved == state.step:  # before a stop; what is whole is not written again
                self.saved()
                with parts.runtime.together():
                    if parts.runtime.main:
                        parts.saver.mark_best(state.step)
        state.measured = state.step
        if parts.recorder:
            parts.recorder.evaluation(state.step, metrics.headline(), best=improved)
        return metrics

    def say_spent(self) -> None:
        """Say why a run ends before its last step."""
        parts, state = self.parts, self.state
        if parts.recorder:
            parts.recorder.display.say(
                f"ended early: no evaluation was better than that of step {state.best_step}"
                f" (eval.patience: {parts.config.eval.patience})"
            )

    def save(self) -> None:
        """Write a checkpoint of this step, once the processes agree on what stands in it.

        Raises:
            CheckpointError: it could not be written, or the one before it.
        """
        parts, state = self.parts, self.state
        self.compare()
        if parts.recorder:
            parts.recorder.sync()
        self.saved()
        background = parts.config.checkpoint.background
        with self.clock.paused():
            part: Spread | None = None
            apart: AbstractContextManager[None] = nullcontext()
            main, sharding = parts.runtime.main, parts.sharding
            gathers = sharding is not None
            # Each process has a part of the weights, and writes it; over several machines, which
            # may not see one directory, the main one gathers all.
            if sharding and launcher.local_world() == parts.runtime.world:
                gathers = False
                part = spread.begin(parts.saver.root, state.step, parts.runtime)
                apart = sharding.apart()
            with parts.runtime.together():
                if main or part or gathers:
                    with apart:
                        held = parts.saver.held(copy=background and (main or part is not None))
                if main or part:
                    self._writing.begin(partial(self._write, asdict(state), held, part))
                    if not background:
                        self._writing.finish()
        self._saved = state.step

    def _write(self, state: dict[str, Any], held: Held, part: Spread | None) -> None:
        try:
            with standing.writing():
                self.parts.saver.save(state, held, part)
        except Exception:  # whatever it is: raised again where the write is waited for
            self.parts.stop.ask()  # or the run would train on to its next save
            raise

    def saved(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            CheckpointError: it could not be.
        """
        with self.clock.paused(), self.parts.runtime.together():
            self._writing.finish()

    def close(self) -> None:
        """Wait until nothing is written any more, whatever comes of it: the run ends otherwise."""
        self._writing.wait()

    def rescue(self) -> None:
        """Save the last whole step, alone, where the other processes are gone.

        On the CPU: a GPU's queue waits for them too, and would go on with what is no sum. Nobody is
        left to compare weights with; the steps since the last comparison are taken as they are.
        """
        parts, state = self.parts, self.state
        self._writing.finish()
        here = parts.runtime.main and parts.runtime.device.type == "cpu"
        if not here or self._saved == state.step or not parts.reducer.undo():
            return
        if parts.tripwire and parts.tripwire.astray(state.step):
            return
        standing.save()
        self.settle()
        if parts.recorder:
            parts.recorder.sync()
        parts.saver.save(asdict(state))
        if parts.recorder:
            parts.recorder.display.say(f"the others are gone; step {state.step} is saved")

    def stop(self) -> NoReturn:
        """Save what there is, and end the run."""
        self.settle()
        # Where nothing was done since the last checkpoint, that one says it all.
        if self._saved != self.state.step:
            self.save()
        self.saved()
        raise Stopped(
            f"a signal came; step {self.state.step} is saved",
            rundir.go_on(self.parts.saver.root.parent),
        )
