"""What is written down of a run on its way."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from host import launcher, limits
from host.errors import DivergedError, Stopped
from train.measure import Metrics
from train.parts import Parts
from train.process import pace, standing
from train.process.clock import Clock
from train.process.health import Health, complaints
from train.process.pace import Member
from train.record import rundir, spread
from train.record.background import Background
from train.record.resume import State
from train.record.saver import Held
from train.record.spread import Spread

# Seconds and steps of training between looks at the machine.
_PERIOD, _STEPS = 10.0, 5


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
        # The first steps start workers and choose kernels: looks begin after them.
        self._sampled: tuple[int, float] | None = None
        self._said: set[str] = set()  # kinds of complaints: each is made once
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
                    "lower --optim.lr, warm up longer, or set --optim.clip 1",
                )

    def health(self, health: Health) -> None:
        """Write down how each process fares, now and then, and say what is wrong with it."""
        parts, state, runtime = self.parts, self.state, self.parts.runtime
        now, last = (state.step, state.seconds), state.step == parts.steps
        if self._sampled is None:
            self._sampled = now
            parts.watch.read()
            return
        steps, seconds = now[0] - self._sampled[0], now[1] - self._sampled[1]
        # The main process's clock decides, for all are to look at the same steps.
        if not last and not runtime.any(runtime.main and seconds > _PERIOD and steps >= _STEPS):
            return
        self._sampled = now
        figures = health.take(seconds, steps, parts.watch.read())
        judged = seconds > _PERIOD / 2 and steps >= _STEPS
        wrong = complaints(figures, parts.config, limits.cpus_each()) if judged else {}
        lanes = len(runtime.lanes)
        own = pace.member(runtime.rank, runtime.device, figures, wrong, lanes)
        members = runtime.gathered(own)
        if parts.recorder is None:
            return
        parts.recorder.health(state.step, figures, [m.row() for m in members if len(members) > 1])
        movable = _movable(parts)
        compared = judged and parts.pipeline is None  # stages take what they take
        for kind, text in _wrong(members, judged=compared, movable=movable):
            if kind not in self._said:
                self._said.add(kind)
                parts.recorder.warn(state.step, text)

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
            # Each process has a part of the weights, and writes it; over several machines, which
            # may not see one directory, the main one gathers all.
            if sharding and launcher.local_world() == parts.runtime.world:
                part = spread.begin(parts.saver.root, state.step, parts.runtime)
                apart = sharding.apart()
            with parts.runtime.together():
                if main or sharding:
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


def _movable(parts: Parts) -> bool:
    """Whether SHARES= could give one process's lanes to another."""
    fixed = parts.config.reproducibility == "deterministic" or parts.sharding is not None
    synchronised = any(isinstance(m, nn.SyncBatchNorm) for m in parts.unwrapped.modules())
    return not (fixed or synchronised or launcher.elastic() is not None)


def _wrong(members: Sequence[Member], *, judged: bool, movable: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with the processes, and of which kind that is."""
    for member in members:
        for kind, text in member.complaints.items():
            yield kind, text if member.rank == 0 else f"{member.name}: {text}"
    several = judged and len(members) > 1
    slow = pace.complaint(members, movable=movable) if several else None
    if slow:
        yield "slow", slow
