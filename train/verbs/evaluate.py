"""measure a run's final weights, or one checkpoint, on the validation set"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host import dotted
from host.errors import DataError, UsageError
from host.text import json_line
from train import trained
from train.config import Config, Data
from train.config.data import root_flag

if TYPE_CHECKING:  # what imports torch is imported when it is run
    from train.data import ImageData
    from train.measure import Metrics
    from train.record.facts import Facts

LAUNCHED = True
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights, on which data."""
    trained.arguments(parser)
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")
    parser.add_argument(
        "--data.on_bad",
        dest="on_bad",
        choices=("error", "skip"),
        help="what to do about pictures that cannot be used (default: as in the training)",
    )
    for kind in ("image", "label"):
        parser.add_argument(
            f"--data.{kind}_column",
            dest=f"{kind}_column",
            metavar="NAME",
            help="that column of another list or table; null: it has none",
        )
    parser.add_argument(
        "--all", action="store_true", help="measure all of its pictures, none of them held out"
    )


def experiment(options: argparse.Namespace, _knobs: dict[str, Any]) -> Config:
    """What the weights were trained with, as their checkpoint has it. `main` verifies that.

    Raises:
        UsageError: there is no such run.
    """
    return trained.experiment(trained.chosen(options))


def lanes(_config: Config) -> None:
    """Any number of processes can measure."""


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Measure, and print the figures as JSON.

    Raises:
        LockstepError: what went wrong, for the user to mend.
    """
    path = trained.chosen(options)
    with trained.opened(path, options.root) as it:
        if options.all:
            _check_others(options.root, it.facts.config["data"]["root"])
        from train.record.silence import told

        averaged, main = it.checkpoint.averaged, it.runtime.main
        what = "the average of the weights" if averaged else "the weights"
        with told(f"measuring {what} on the validation images", main=main, file=sys.stderr):
            metrics = _measured(it, options)
    if main:
        step = it.checkpoint.state["step"]
        print(
            f"top-1 {100 * metrics.top1:.2f} %, loss {metrics.loss:.4f} on {metrics.samples}"
            f" images{', trained on or not' * options.all}, after step"
            f" {step}{', of the average of the weights' * averaged}\n",
            end="",
            file=sys.stderr,
        )
        # Each in one piece, its end included: Docker brings both streams into one.
        said = {"checkpoint": str(path), "step": step, **metrics.full()}
        print(f"{json_line(said)}\n", end="")


def _check_others(root: str | None, before: str | None) -> None:
    """See that all of a folder are not those that the weights were trained on."""
    if root is None or Path(root).resolve() == Path(before or "data").resolve():
        raise UsageError(
            "--all would measure pictures that the weights were trained on",
            f"name others: {root_flag()}",
        )


def _measured(it: trained.Trained, options: argparse.Namespace) -> "Metrics":
    """The figures of a checkpoint's weights, on its data: what is held out, or every picture."""
    from train.data import ALL, Augmenter, load
    from train.measure import evaluate
    from train.process.interrupt import StopFlag

    config, runtime, facts, every = it.config, it.runtime, it.facts, options.all
    place = _as_trained(config, facts.shape[0])
    if every and dotted.is_path(place.source):
        raise UsageError(
            "--all is for a folder of pictures, and your own source says itself what is measured",
            "take it away",
        )
    if every:
        place = place.model_copy(update={"holdout": ALL})
    if options.on_bad is not None:
        place = place.model_copy(update={"on_bad": options.on_bad})
    for knob in ("image_column", "label_column"):
        name = getattr(options, knob)
        if name is not None:
            place = place.model_copy(update={knob: None if name == "null" else name})
    with runtime.together():
        data = load(place, config.augment, config.eval)
    if every and not data.held_out:
        raise UsageError(
            "--all is given, and the data has a validation split of its own",
            f"take it away, or name a split's own folder: {root_flag()}",
        )
    if data.classes != facts.classes or data.train.shape != facts.shape:
        raise DataError(_unlike(data, facts), f"name the right data with {root_flag()}")
    if data.skipped:
        some = f"{len(data.skipped):,} picture{'s' * (len(data.skipped) > 1)}"
        trained.warn(f"left out: {some} that cannot be used")
    other = facts.data_sha256 not in (None, data.sha256)
    if other and data.held_out and not every:
        held, total = len(data.validation), len(data.validation) + len(data.train)
        trained.warn(
            f"a share of the pictures is held out, and only that is measured: {held:,} of"
            f" {total:,}, drawn from those that are here now. If it is the folder of the training,"
            " most of them may have been trained on; of another one, --all measures all"
        )
    if other and not every:  # of all, the fingerprint is always another
        trained.warn("the data is not what the weights were trained on")
    model = it.model(len(data.classes), data.train.shape)
    augmenter = Augmenter(config.augment, facts.mean, facts.std, runtime.device)
    return evaluate(model, data, augmenter, runtime, config, stop=StopFlag())


def _unlike(data: "ImageData", facts: "Facts") -> str:
    """How the data is not what the weights were trained on."""
    if data.train.shape != facts.shape:
        (was, tall, wide), (channels, height, width) = facts.shape, data.train.shape
        return (
            f"the pictures have {width}×{height} pixels and {channels} channels, and the weights"
            f" were trained on {wide}×{tall} and {was}"
        )
    other = facts.other_classes(data.classes)
    if not other:
        return "the data has its classes in another order than the weights were trained on"
    return f"the data has other classes than the weights were trained on: it {other}"


def _as_trained(config: Config, channels: int) -> Data:
    """The data, in colour or grey as it was trained on: what is there now may be grey alone."""
    return config.data.model_copy(update={"channels": channels})
