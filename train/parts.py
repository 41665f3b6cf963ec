"""What a training run is made of."""

import math
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from train.config import Config
from train.data import Augmenter, Batch, ImageData, lane_blocks
from train.lanes import order
from train.lanes.pipeline import Pipeline
from train.lanes.reducer import Reducer
from train.lanes.runtime import Runtime
from train.lanes.seeds import Generators
from train.lanes.sharding import Sharding
from train.lanes.stagesum import StageSum
from train.lanes.staging import Staging
from train.lanes.traits import Traits
from train.lanes.tripwire import Tripwire
from train.learn.average import Average
from train.learn.loss import Loss
from train.measure import Metrics, evaluate
from train.process.health import Health
from train.process.interrupt import StopFlag
from train.process.stopwatch import Stopwatch
from train.record.recorder import Recorder
from train.record.saver import Saver


@dataclass(frozen=True)
class Parts:
    """What `fit` works with, built and ready.

    Attributes:
        model: what is called: wrapped for precision, processes and compilation.
        unwrapped: the same weights as the bare module, for evaluation and checkpoints.
        traits: what the model does that others do not.
        loss: from logits and labels to each sample's loss.
        generators: all that the model draws random numbers from.
        stop: set when a signal asks this process to stop.
        samples: how many the run consumes in all.
        first_pass: a digest of what the new model gives for the first images; None at `fast`.
        tripwire: compares the processes' weights; None where there is one process.
        average: of the weights over steps; None where none is asked for.
        sharding: what this process has of the weights; None where each process holds them all.
        pipeline: this process's stage of the model; None where it is not cut.
        recorder: writes figures over time; None on processes that do not write.
        watch: counts where the time of steps goes.
        health: samples the machine; None where nobody reads it.
    """

    config: Config
    runtime: Runtime
    data: ImageData
    augmenter: Augmenter
    model: nn.Module
    unwrapped: nn.Module
    traits: Traits
    generators: Generators
    loss: Loss
    optimizer: AcceleratedOptimizer
    reducer: Reducer | StageSum
    saver: Saver
    tripwire: Tripwire | None
    average: Average | None
    sharding: Sharding | Staging | None
    pipeline: Pipeline | None
    recorder: Recorder | None
    stop: StopFlag
    samples: int
    first_pass: str | None
    watch: Stopwatch
    health: Health | None

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return order.steps(self.samples, self.config.batch_size)

    def batches(self, step: int) -> Generator[Batch, None, None]:
        """Each of this process's lanes from `step` to the end, as it enters the model.

        Close the generator to end its loaders.
        """
        if self.pipeline is not None and not self.pipeline.first:
            return
        mine, device = self.runtime.lanes, self.runtime.device
        blocks = lane_blocks(
            self.data.train, self.config, mine, device, first_step=step, total=self.samples
        )
        with closing(blocks):
            while True:
                with self.watch.span("data"):
                    block = next(blocks, None)
                if block is None:
                    return
                batch, sizes = block
                if len(batch):
                    images = self.augmenter(batch.images, batch.keys)
                    batch = replace(batch, images=images)
                yield from map(self.augmenter.mix, batch.split(sizes))

    def clip(self) -> Tensor:
        """Hold the gradient to the experiment's norm; returns the norm that it had."""
        limit = self.config.optim.clip or math.inf
        if self.sharding is not None:
            return self.sharding.clip(limit)
        norm: Tensor = self.runtime.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        return norm

    def measure(self) -> Metrics:
        """Figures of the weights, or of their average, on the validation set, on each process.

        Raises:
            Stopped: a signal came before all was measured.
        """
        args = (self.unwrapped, self.data, self.augmenter, self.runtime, self.config)
        with self.average.in_place() if self.average else nullcontext():
            moving, pipeline = self.traits.measured, self.pipeline
            return evaluate(*args, stop=self.stop, moving=moving, pipeline=pipeline)
