"""Whether a model calls only what gives the same bits on all CPUs."""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from host.errors import LockstepError, UsageError
from train.config import Config
from train.learn.tries import Tries
from train.numerics import convolutions, operations

# Images from which on torch gives all convolutions to oneDNN, twice.
_MANY = 32


def check(
    new: Callable[[], Tries], pictures: Callable[[int], Tensor], config: Config, before: int
) -> None:
    """Try new models, as a training has them, and see that all they call is known.

    Args:
        new: builds a model; what is called for that, and in its first pass only, counts as well.
        pictures: that many images, float32 [N, C, H, W].
        before: functions that were `compiled` before the model was tried at all.

    Raises:
        UsageError: naming what is not the same on all CPUs, or was not compared.
    """
    with operations.seen() as names, convolutions.seen() as computed:
        _call(new())
        _pass_many(new(), pictures, config)
    if compiled() > before:
        raise UsageError(
            "the model compiles a part of itself (torch.compile), for the CPU that it finds, and"
            " numerics: portable is to be the same on all",
            "leave torch.compile out of it, or use --numerics native",
        )
    operations.check(names)
    convolutions.check(computed)


def compiled() -> int:
    """Functions that were compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["ok"]) if dynamo else 0


def _call(looked: Tries) -> None:
    """Call what a training calls, where it draws one thing or another."""
    looked.evaluate()
    for seed in range(6):
        looked.train(seed=seed)
    looked.evaluate()


def _pass_many(looked: Tries, pictures: Callable[[int], Tensor], config: Config) -> None:
    """Pass larger batches, laid out as in training: torch leaves small ones to other code."""
    for count, training in ((config.micro_batch, True), (config.eval_batch, False)):
        last = training and config.model.channels_last
        layout = torch.channels_last if last else torch.contiguous_format
        try:
            some = pictures(min(count, _MANY)).contiguous(memory_format=layout)
            looked.size(some, training=training)
        except (LockstepError, MemoryError):
            raise
        except Exception:  # whatever a model raises that takes batches of its own size only
            looked.size(pictures(count).contiguous(memory_format=layout), training=training)
