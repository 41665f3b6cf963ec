"""The training loop: one screen, and what it works with."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import NoReturn

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.nn import functional

from train import optim, order
from train.checkpoint import Saver
from train.config import Config
from train.data import Augmenter, Batch, ImageData, lane_batches
from train.errors import DivergedError, Stopped
from train.evaluate import Metrics, evaluate
from train.interrupt import StopFlag
from train.metrics import Recorder
from train.reduce import Reducer
from train.runtime import Runtime, seed_lane
from train.schedule import is_due
from train.tripwire import Tripwire


@dataclass
class State:
    """Where a run stands: with weights and optimizer, all that a resumed run needs."""

    step: int = 0
    seconds: float = 0.0  # of training, without evaluations and saves
    measured: int = 0  # step of the last evaluation
    best_step: int = 0
    best_top1: float = -1.0


@dataclass(frozen=True)
class Parts:
    """What `fit` works with, built and ready.

    Attributes:
        model: what is called: wrapped for precision, processes and compilation.
        unwrapped: the same weights as the bare module, for evaluation and checkpoints.
        stop: set when a signal asks this process to stop.
        samples: how many the run consumes in all.
        tripwire: compares the processes' weights; None where there is one process.
        recorder: writes figures over time; None on processes that do not write.
    """

    config: Config
    runtime: Runtime
    data: ImageData
    augmenter: Augmenter
    model: nn.Module
    unwrapped: nn.Module
    optimizer: AcceleratedOptimizer
    reducer: Reducer
    saver: Saver
    tripwire: Tripwire | None
    recorder: Recorder | None
    stop: StopFlag
    samples: int

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return order.steps(self.samples, self.config.batch_size)

    def measure(self) -> Metrics | None:
        """Figures on the validation set, the same on each process; None where a signal came."""
        self.reducer.sync_buffers()
        return evaluate(
            self.unwrapped, self.data, self.augmenter, self.runtime, self.config,
            stop=self.stop,
        )  # fmt: skip


def fit(parts: Parts, state: State) -> Metrics | None:
    """Train from `state` to the end; returns the last evaluation, None if none was due.

    Raises:
        DivergedError: the loss is not finite any more; the last checkpoint is from before.
        HostError: the processes' weights are not the same any more.
        Stopped: a signal came; there is a checkpoint of this step.
    """
    config, runtime, steps = parts.config, parts.runtime, parts.steps
    epoch = order.steps(len(parts.data.train), config.batch_size)
    eval_every, save_every = config.eval.every or epoch, config.checkpoint.every or epoch
    batches = lane_batches(
        parts.data.train, config, runtime.lanes, runtime.device,
        first_step=state.step, total=parts.samples,
    )  # fmt: skip
    notes, metrics = Notes(parts, state), None
    # A run that was stopped inside an evaluation goes on with it.
    if state.step > state.measured and is_due(state.step, eval_every, steps):
        metrics = notes.measure()
    for step in range(state.step, steps):
        if runtime.any(bool(parts.stop)):
            notes.stop()
        lr = optim.set_lr(parts.optimizer, config.optim, step, steps)
        report = forward_backward(parts, batches, step)
        norm = runtime.accelerator.clip_grad_norm_(
            parts.model.parameters(), config.optim.clip or math.inf
        )
        parts.optimizer.step()
        state.step = step + 1
        notes.look(report, norm)

        log_due = is_due(state.step, config.log.every, steps)
        eval_due = is_due(state.step, eval_every, steps)
        save_due = is_due(state.step, save_every, steps)
        if log_due or eval_due or save_due:
            notes.settle()  # waits for the device: what is due comes after sound steps only
        if log_due and parts.recorder:
            parts.recorder.train(state.step, state.seconds, lr, report.tolist(), float(norm))
        if config.tripwire and is_due(state.step, config.tripwire, steps):
            notes.compare()
        if eval_due:
            metrics = notes.measure()
        if save_due or state.best_step == state.step:
            notes.save()
    return metrics


def forward_backward(parts: Parts, batches: Iterator[Batch], step: int) -> Tensor:
    """This process's lanes of one step; gradients end up summed over all lanes.

    Returns:
        Mean loss and accuracy of the whole batch, float32 [2], on the device.
    """
    config, runtime, reducer = parts.config, parts.runtime, parts.reducer
    batch_size, samples = config.batch_size, parts.samples
    size = order.consumed(step + 1, batch_size, samples) - step * batch_size
    for lane in runtime.lanes:
        batch = next(batches)
        seed_lane(config.seed, step, lane)
        report = torch.zeros(2, device=runtime.device)
        with reducer.lane(sync=lane == runtime.lanes[-1] and size == batch_size):
            if len(batch):
                images = parts.augmenter(batch.images, batch.keys)
                if config.model.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                logits = parts.model(images).float()
                loss = functional.cross_entropy(
                    logits, batch.labels, reduction="sum",
                    label_smoothing=config.optim.label_smoothing,
                )  # fmt: skip
                runtime.accelerator.backward(loss * (reducer.scale / size))
                hits = (logits.detach().argmax(1) == batch.labels).sum()
                report = torch.stack([loss.detach(), hits.float()])
        reducer.add(len(batch) / size, report)
    return reducer.total() / size


class Clock:
    """Seconds of training, without the pauses."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = time.perf_counter()

    def read(self) -> float:
        """Seconds so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the block."""
        self._seconds, self._since = self.read(), None
        yield
        self._since = time.perf_counter()


class Notes:
    """What is written down of a run on its way: its trace, its evaluations, its checkpoints.

    Figures of a step stay on the device until something is due: reading them waits for it.
    """

    def __init__(self, parts: Parts, state: State) -> None:
        self.parts, self.state = parts, state
        self.clock = Clock(state.seconds)
        # A resumed run starts from a checkpoint.
        self._saved = state.step if parts.saver.holds(state.step) else None
        self._compared = self._saved
        self._unread: list[Tensor] = []
        # An overflowing gradient is no harm under FP16: the scaler skips the step.
        self._scaled = parts.runtime.accelerator.mixed_precision == "fp16"

    def look(self, report: Tensor, norm: Tensor) -> None:
        """Keep the loss and the gradient's norm of the step that was just done."""
        self._unread.append(torch.stack((report[0], norm)))

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
        with self.clock.paused():
            metrics = parts.measure()
        if metrics is None:
            self.stop()
        improved = metrics.top1 > state.best_top1
        if improved:
            state.best_step, state.best_top1 = state.step, metrics.top1
            if self._saved == state.step:  # before a stop; what is whole is not written again
                parts.runtime.on_main(partial(parts.saver.mark_best, state.step))
        state.measured = state.step
        if parts.recorder:
            parts.recorder.evaluation(state.step, metrics.headline(), best=improved)
        return metrics

    def save(self) -> None:
        """Write a checkpoint of this step, once the processes agree on what stands in it."""
        parts, state = self.parts, self.state
        self.compare()
        with self.clock.paused():
            parts.reducer.sync_buffers()
            parts.runtime.on_main(partial(parts.saver.save, asdict(state)))
        self._saved = state.step

    def stop(self) -> NoReturn:
        """Save what there is, and end the run."""
        self.settle()
        # Where nothing was done since the last checkpoint, that one says it all.
        if self._saved != self.state.step:
            self.save()
        raise Stopped(f"a signal came; step {self.state.step} is saved", "add --resume to go on")
