"""What a run has trained: a checkpoint's model, built again where it is to be asked."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from host import dotted, launcher, regular
from host.errors import LockstepError, UsageError
from train.config import Config
from train.experiment import moved, parse
from train.numerics import variables
from train.record import documents, rundir

if TYPE_CHECKING:  # what imports torch is imported when it is run
    from torch import nn

    from train.lanes.runtime import Runtime
    from train.record.checkpoint import Checkpoint
    from train.record.facts import Facts


@dataclass(frozen=True)
class Trained:
    """A verified checkpoint and where it is asked.

    Attributes:
        config: what it was trained with, as this machine can compute it.
    """

    path: Path
    checkpoint: "Checkpoint"
    config: Config
    runtime: "Runtime"

    @property
    def facts(self) -> "Facts":
        """What it was trained on."""
        return self.checkpoint.facts

    def model(self, classes: int, shape: tuple[int, int, int]) -> "nn.Module":
        """Its model with its weights, or their average, on the device and in its precision.

        Args:
            shape: (C, H, W) of training images.
        """
        from train.lanes.state import move

        runtime = self.runtime
        model = move(built(self.checkpoint, self.config, classes, shape), runtime.device)
        prepared: nn.Module = runtime.accelerator.prepare_model(model, evaluation_mode=True)
        return prepared


def built(
    checkpoint: "Checkpoint", config: Config, classes: int, shape: tuple[int, int, int]
) -> "nn.Module":
    """A checkpoint's model with its weights, or their average, on the CPU.

    Args:
        config: what it was trained with.
        shape: (C, H, W) of training images.
    """
    from train.lanes import seeds
    from train.learn import models
    from train.learn.alone import alone

    # The weights come from the checkpoint, whatever the training started from.
    blank = config.model.model_copy(update={"weights": None})
    dotted.load_all(config.own_code)
    seeds.seed_start(config.seed)  # a model may hold more than its checkpoints do
    with alone() if config.lockstep else nullcontext():
        model = models.build(blank, classes, shape)
    checkpoint.measured().restore_model(model)
    return model


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights."""
    parser.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="a run directory: its newest weights (default: the newest run)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="one checkpoint directory, or the name of one of the run's, such as best",
    )


def chosen(options: argparse.Namespace) -> Path:
    """The checkpoint that a command line asks for.

    Raises:
        UsageError: there is no such run.
    """
    named: Path | None = options.checkpoint
    if named is not None and (named / documents.RECORD).exists():
        raise UsageError(
            f"{named} is a run, and not one of its checkpoints",
            f"say --run {named}, or --checkpoint {rundir.checkpoints(named) / 'best'}",
        )
    if named is None:
        return _newest(options.run or rundir.newest())
    if named.parent == Path() and not named.exists():
        named = rundir.checkpoints(options.run or rundir.newest()) / named
    if options.run is not None and options.run.resolve() not in named.resolve().parents:
        raise UsageError(
            f"{named} is no checkpoint of {options.run}",
            f"name one of {rundir.checkpoints(options.run)}, or take {options.run} away",
        )
    return named


def _newest(run: Path) -> Path:
    """The newest checkpoint; it says so where that is not the run's last one."""
    path = rundir.final_checkpoint(run)
    step, last = rundir.step_of(path), (documents.result(run) or {}).get("steps")
    if isinstance(last, int) and step != last and launcher.rank() == 0:
        warn(f"{run} came to step {last}, and its newest checkpoint is that of step {step}")
    return path


def experiment(path: Path) -> Config:
    """What the weights were trained with, as their checkpoint has it. `opened` verifies that."""
    try:
        said = documents.mapping(regular.read(path / rundir.STATE, documents.MOST))
        return _here(parse(said["config"], str(path)))
    except (OSError, ValueError, KeyError, UsageError):  # it is damaged: `opened` says it better
        return Config()


@contextmanager
def opened(path: Path, root: str | None = None) -> Iterator[Trained]:
    """A checkpoint, verified, and this process among its peers, as it was trained.

    Args:
        root: where its data is now; None: where it was.

    Raises:
        CheckpointError: it is damaged.
        UsageError: this machine cannot compute as it was trained.
    """
    if experiment(path).portable:
        variables.hold()
    from train.lanes import runtime as runtimes
    from train.process.failures import explained
    from train.record import checkpoint, comparison

    found = checkpoint.read(path).loaded()
    trained = moved(parse(found.facts.config, str(path)), root)
    config = _here(trained)
    if config != trained:
        warn(
            "trained with numerics: portable, which this CPU cannot do: figures may differ slightly"
        )
    precision = _precision(found.facts.mixed_precision)
    dotted.check_there(config.own_code.values())
    with (
        explained(config),
        runtimes.start(config, training=False, precision=precision) as runtime,
    ):
        comparison.agree(config, runtime)
        if runtime.main:
            check_code(path.absolute().parent.parent)
        yield Trained(path, found, config, runtime)


def warn(text: str) -> None:
    """Say it once, on the main process."""
    if launcher.rank() == 0:
        print(f"warning: {text}", file=sys.stderr)


def _here(config: Config) -> Config:
    """Portable numerics are those of a training; where they cannot be had, weights can be measured
    all the same.
    """
    if config.portable and not variables.possible():
        return config.model_copy(update={"numerics": "native"})
    return config


def _precision(recorded: str) -> str:
    """That of the training, or its figures would not come out again; FP32 where that cannot be."""
    import torch

    precision = recorded
    if precision == "fp16" and not torch.cuda.is_available():
        warn("trained in FP16, which needs a GPU: measured in FP32, figures may differ slightly")
        precision = "no"
    asked = os.environ.get("PRECISION", "")
    if asked not in ("", precision, recorded):
        raise UsageError(
            f"PRECISION={asked}, and weights are measured as they were trained: {precision}",
            f"say PRECISION={precision}, or nothing",
        )
    return precision


def check_code(run: Path) -> None:
    """Say where code of the user's is not what a run recorded."""
    with suppress(LockstepError):  # without its record, or with a damaged one, nothing is known
        record = documents.record(run) or {}
        changed = dotted.changed(record.get("own_code", {}))
        if changed:
            warn(f"your own code changed since the training: {', '.join(changed)}")
