"""What a training run is made of, and where it stands."""

from dataclasses import dataclass

from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from train import order
from train.config import Config
from train.data import Augmenter, ImageData
from train.evaluate import Metrics, evaluate
from train.health import Health
from train.interrupt import StopFlag
from train.metrics import Recorder
from train.reduce import Reducer
from train.runtime import Runtime
from train.saver import Saver
from train.stopwatch import Stopwatch
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
        watch: counts where the time of steps goes.
        health: samples the machine; None on processes that do not write.
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
    watch: Stopwatch
    health: Health | None

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
