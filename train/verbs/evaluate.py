"""measure a run's final weights, or one checkpoint, on the validation set"""

import argparse
import json
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host import dotted, launcher, regular
from host.errors import DataError, LockstepError, UsageError
from train.config import Config, Data
from train.config.data import root_flag
from train.experiment import moved, parse
from train.numerics import variables
from train.record import documents, rundir

if TYPE_CHECKING:  # what imports torch is imported when it is run
    from train.data import ImageData
    from train.lanes.runtime import Runtime
    from train.measure import Metrics
    from train.record.checkpoint import Checkpoint
    from train.record.facts import Facts

LAUNCHED = True
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights, on which data."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="a run directory: its newest weights (default: the newest run)",
    )
    what.add_argument("--checkpoint", type=Path, metavar="DIR", help="one checkpoint directory")
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")


def experiment(options: argparse.Namespace, _knobs: dict[str, Any]) -> Config:
    """What the weights were trained with, as their checkpoint has it. `main` verifies that.

    Raises:
        UsageError: there is no such run.
    """
    path = _checkpoint(options)
    try:
        said = documents.mapping(regular.read(path / rundir.STATE, documents.MOST))
        return _here(parse(said["config"], str(path)))
    except (OSError, ValueError, KeyError, UsageError):  # it is damaged: `main` says it better
        return Config()


def _here(config: Config) -> Config:
    """Portable numerics are those of a training; where they cannot be had, weights can be measured
    all the same.
    """
    if config.portable and not variables.possible():
        return config.model_copy(update={"numerics": "native"})
    return config


def lanes(_config: Config) -> None:
    """Any number of processes can measure."""


def _checkpoint(options: argparse.Namespace) -> Path:
    named: Path | None = options.checkpoint
    return named or rundir.final_checkpoint(options.run or rundir.newest())


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Measure, and print the figures as JSON.

    Raises:
        LockstepError: what went wrong, for the user to mend.
    """
    if experiment(options, knobs).portable:
        variables.hold()
    from train.lanes import runtime as runtimes
    from train.process.failures import explained
    from train.record import checkpoint, comparison
    from train.record.silence import told

    path = _checkpoint(options)
    found = checkpoint.read(path)
    trained = moved(parse(found.facts.config, str(path)), options.root)
    config = _here(trained)
    if config != trained:
        _warn(
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
            _check_code(path)
        what = "the average of the weights" if found.averaged else "the weights"
        with told(f"measuring {what} on the validation images", main=runtime.main, file=sys.stderr):
            metrics = _measured(found, config, runtime)
    if runtime.main:
        step = found.state["step"]
        print(
            f"top-1 {100 * metrics.top1:.2f} %, loss {metrics.loss:.4f} on {metrics.samples}"
            f" images, after step {step}{', of the average of the weights' * found.averaged}\n",
            end="",
            file=sys.stderr,
        )
        # Each in one piece, its end included: Docker brings both streams into one.
        print(f"{json.dumps({'checkpoint': str(path), 'step': step, **metrics.full()})}\n", end="")


def _check_code(path: Path) -> None:
    """Say where code of the user's is not what the checkpoint's run recorded."""
    with suppress(LockstepError):  # without its record, or with a damaged one, nothing is known
        record = documents.record(path.absolute().parent.parent) or {}
        changed = dotted.changed(record.get("own_code", {}))
        if changed:
            _warn(f"your own code changed since the training: {', '.join(changed)}")


def _precision(recorded: str) -> str:
    """That of the training, or its figures would not come out again; FP32 where that cannot be."""
    import torch

    precision = recorded
    if precision == "fp16" and not torch.cuda.is_available():
        _warn("trained in FP16, which needs a GPU: measured in FP32, figures may differ slightly")
        precision = "no"
    asked = os.environ.get("PRECISION", "")
    if asked not in ("", precision, recorded):
        raise UsageError(
            f"PRECISION={asked}, and weights are measured as they were trained: {precision}",
            f"say PRECISION={precision}, or nothing",
        )
    return precision


def _measured(found: "Checkpoint", config: Config, runtime: "Runtime") -> "Metrics":
    """The figures of a checkpoint's weights, on its data."""
    from train.data import Augmenter, load
    from train.lanes import seeds
    from train.learn import models
    from train.learn.alone import alone
    from train.measure import evaluate
    from train.process.interrupt import StopFlag

    facts = found.facts
    with runtime.together():
        data = load(_as_trained(config, facts.shape[0]), config.augment, config.eval)
    if data.classes != facts.classes or data.train.shape != facts.shape:
        raise DataError(_unlike(data, facts), f"name the right data with {root_flag()}")
    other = facts.data_sha256 not in (None, data.sha256)
    if runtime.main and other and data.held_out:
        held, total = len(data.validation), len(data.validation) + len(data.train)
        _warn(
            f"as in the training, a share of the pictures is held out, and only that is measured:"
            f" {held:,} of {total:,}"
        )
    if runtime.main and other:
        _warn("the data is not what the weights were trained on")
    # The weights come from the checkpoint, whatever the training started from.
    blank = config.model.model_copy(update={"weights": None})
    dotted.load_all(config.own_code)
    seeds.seed_start(config.seed)  # a model may hold more than its checkpoints do
    with alone() if config.lockstep else nullcontext():
        model = models.build(blank, len(data.classes), data.train.shape)
    found.measured().restore_model(model)
    model = runtime.accelerator.prepare_model(model.to(runtime.device), evaluation_mode=True)
    augmenter = Augmenter(config.augment, facts.mean, facts.std, runtime.device)
    return evaluate(model, data, augmenter, runtime, config, stop=StopFlag())


def _unlike(data: "ImageData", facts: "Facts") -> str:
    """How the data is not what the weights were trained on."""
    from train.data.pictures import some

    if data.train.shape != facts.shape:
        (was, tall, wide), (channels, height, width) = facts.shape, data.train.shape
        return (
            f"the pictures have {width}×{height} pixels and {channels} channels, and the weights"
            f" were trained on {wide}×{tall} and {was}"
        )
    missing = sorted({*facts.classes} - {*data.classes})
    more = sorted({*data.classes} - {*facts.classes})
    if not missing and not more:
        return "the data has its classes in another order than the weights were trained on"
    said = [f"has no {some(missing)}"] * bool(missing) + [f"has {some(more)} as well"] * bool(more)
    return f"the data has other classes than the weights were trained on: it {' and '.join(said)}"


def _as_trained(config: Config, channels: int) -> Data:
    """The data, in colour or grey as it was trained on: what is there now may be grey alone."""
    return config.data.model_copy(update={"channels": channels})


def _warn(text: str) -> None:
    if launcher.rank() == 0:
        print(f"warning: {text}", file=sys.stderr)
