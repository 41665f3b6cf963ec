"""Images as a model will meet them: the first ones, and each number and size of them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from host import dotted
from host.errors import LockstepError, UsageError, first_line
from host.lanes import default
from train.config import Config, Model
from train.data import Augmenter, ImageData, Split
from train.lanes import order
from train.lanes.runtime import Runtime
from train.learn import models
from train.learn.tries import Samples, Tries
from train.process.exhausted import out_of_memory

# Images in the largest batch that is tried: small ones are what a model may not take.
_LARGEST = 32


def samples(config: Config, images: ImageData, runtime: Runtime, count: int) -> Samples:
    """The first training images with their labels, as many as `count` or a lane's."""
    count = min(count, config.micro_batch, len(images.train))
    labels = images.train.labels[:count].to(runtime.device)
    return Samples(pictures(config, images, runtime, count), labels, len(images.classes))


def pictures(
    config: Config, images: ImageData, runtime: Runtime, count: int, split: Split | None = None
) -> Tensor:
    """The first images of a split (the training split), as an evaluation would have them."""
    split = split or images.train
    augmenter = Augmenter(config.augment, images.mean, images.std, runtime.device)
    pixels = split.images(torch.arange(min(count, len(split))))
    return augmenter.normalize(pixels.to(runtime.device))


def try_all(looked: Tries, config: Config, images: ImageData, total: int | None) -> None:
    """Pass small batches as they come through: what fails should do so before it trains.

    Args:
        total: samples that the training consumes; None: there is none, and nothing is tried.

    Raises:
        UsageError: the model cannot take one; saying what would help.
    """
    if total is None:
        return
    passed = False
    for batch, training in _batches(looked, config, images, total):
        try:
            looked.size(batch, training=training)
            passed = True
        except (LockstepError, MemoryError):
            raise
        except Exception as error:  # whatever a model raises
            if "deterministic" in str(error) or out_of_memory(error, config):
                raise
            usual = batch.shape[1:] == images.train.shape
            knobs = "augment.sizes" if training else "eval.size and eval.crop"
            way_out = (
                f"leave {knobs} away: it takes no other size than data.size"
                if not usual
                else _way_out(config.model, looked.model, passed)
            )
            raise _refused(config, error, batch, way_out) from error


def takes(looked: Tries, images: Tensor) -> bool:
    """Whether the model can be trained on that many images of that size."""
    try:
        looked.size(images, training=True)
    except Exception:  # of another size than those that it has passed
        return False
    return True


def _batches(
    looked: Tries, config: Config, images: ImageData, total: int
) -> Iterator[tuple[Tensor, bool]]:
    """What comes, and whether it trains: the larger numbers first, then each other size."""
    train = pictures(config, images, looked.runtime, _LARGEST)
    validation = pictures(config, images, looked.runtime, _LARGEST, images.validation)
    for count, training in sorted(_counts(config, images, total), reverse=True):
        yield (train if training else validation)[:count], training
    if validation.shape[1:] != images.train.shape:
        yield validation[: config.eval_batch], False
    for side in config.augment.sizes or []:
        yield train[: max(2, config.micro_batch), :, :side, :side], True


def _counts(config: Config, images: ImageData, total: int) -> set[tuple[int, bool]]:
    """Numbers of images in a lane at the first and last step, and in an evaluation's batches."""
    size, lanes = config.batch_size, config.lanes
    ends = [
        order.lane_range(step, lane, lanes=lanes, batch_size=size, total=total)
        for step in {0, order.steps(total, size) - 1}
        for lane in range(lanes)
    ]
    validation, each = len(images.validation), config.eval_batch
    counts = {(stop - start, True) for start, stop in ends}
    counts |= {(min(each, validation), False), (validation % each, False)}
    small = {(count, training) for count, training in counts if 0 < count <= _LARGEST}
    return small or {(2, True)}


def _refused(config: Config, error: Exception, batch: Tensor, way_out: str) -> UsageError:
    count, _, height, width = batch.shape
    if "more than 1 value per channel" in str(error):
        return UsageError(
            f"batch norm cannot do with the {count} sample{'s' * (count > 1)} that a lane has",
            f"use --lanes {default(config.batch_size)}, or a larger --batch_size",
        )
    said = first_line(error) or type(error).__name__
    return UsageError(
        f"{config.model.name} cannot take {width}×{height} images, {count} of them: {said}", way_out
    )


def _way_out(config: Model, model: nn.Module, passed: bool) -> str:
    if passed:
        return "choose --batch_size, --lanes and --eval.batch_size so that it gets sizes it takes"
    if dotted.is_path(config.name):
        return "mend its layers; --debug shows where"
    stem = config.stem == "standard" and models.has_small_stem(config, model)
    return f"use {'--model.stem small, ' * stem}a larger --data.size, or a smaller model"
