"""The training loop: one screen, and what it works with."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

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


@dataclass
class State:
    """Where a run stands: with weights and optimizer, all that a resumed run needs."""

    step: int = 0
    seconds: float = 0.0  # of training, without evaluations and saves
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
    recorder: Recorder | None
    stop: StopFlag
    samples: int

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return order.steps(self.samples, self.config.batch_size)

    def measure(self) -> Metrics:
        """Figures on the validation set, the same on each process."""
        self.reducer.sync_buffers()
        return evaluate(self.unwrapped, self.data, self.augmenter, self.runtime, self.config)


def fit(parts: Parts, state: State) -> Metrics | None:
    """Train from `state` to the end; returns the last evaluation, None if no step was left.

    Raises:
        DivergedError: the loss is not finite any more; the last checkpoint is from before.
        Stopped: a signal came; a checkpoint of this step was written.
    """
    config, runtime, steps = parts.config, parts.runtime, parts.steps
    epoch = order.steps(len(parts.data.train), config.batch_size)
    batches = lane_batches(
        parts.data.train, config, runtime.lanes, runtime.device,
        first_step=state.step, total=parts.samples,
    )  # fmt: skip
    clock, watch, metrics = Clock(state.seconds), Watch(runtime), None
    for step in range(state.step, steps):
        lr = optim.set_lr(parts.optimizer, config.optim, step, steps)
        report = forward_backward(parts, batches, step)
        norm = runtime.accelerator.clip_grad_norm_(
            parts.model.parameters(), config.optim.clip or math.inf
        )
        parts.optimizer.step()
        state.step = step + 1
        watch.look(state.step, report[0], norm)

        stop = runtime.any(bool(parts.stop)) and state.step < steps
        log_due = is_due(state.step, config.log.every, steps)
        eval_due = is_due(state.step, config.eval.every or epoch, steps)
        save_due = stop or is_due(state.step, config.checkpoint.every or epoch, steps)
        if log_due or eval_due or save_due:
            watch.check()  # waits for the device: whatever is due, it comes after sound steps only
            state.seconds = clock.read()
        if log_due and parts.recorder:
            parts.recorder.train(state.step, state.seconds, lr, report.tolist(), float(norm))
        with clock.paused():
            if eval_due:
                metrics = parts.measure()
                improved = metrics.top1 > state.best_top1
                if improved:
                    state.best_step, state.best_top1 = state.step, metrics.top1
                if parts.recorder:
                    parts.recorder.evaluation(state.step, metrics.headline(), best=improved)
            if save_due or state.best_step == state.step:
                parts.reducer.sync_buffers()
                runtime.on_main(partial(parts.saver.save, asdict(state)))
        if stop:
            raise Stopped(f"a signal came; step {state.step} is saved", "add --resume to go on")
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


class Watch:
    """Finds the first step whose loss or gradient is not finite, without waiting for the device.

    The step's number is noted on the device; `check` reads it, before anything is logged,
    measured or saved. Under FP16 a gradient may overflow: the scaler then skips the step.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._first = torch.zeros((), dtype=torch.int64, device=runtime.device)
        self._scaled = runtime.accelerator.mixed_precision == "fp16"

    def look(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Note `step` if its figures are the first that are not finite."""
        finite = torch.isfinite(loss) if self._scaled else torch.isfinite(loss + norm)
        self._first = torch.where((self._first == 0) & ~finite, step, self._first)

    def check(self) -> None:
        """Raise DivergedError if any step so far was not finite."""
        step = int(self._first)
        if step:
            raise DivergedError(
                f"the loss or its gradient is not finite at step {step}",
                "lower --optim.lr, warm up longer, or set --optim.clip 1",
            )
