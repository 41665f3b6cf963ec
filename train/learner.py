"""Model and optimizer, new from the seed, and what the model does that others do not."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.optim import Optimizer

from host.errors import LockstepError, UsageError
from host.lanes import default
from train.config import Config
from train.data import Augmenter, ImageData
from train.data.images import first_line
from train.lanes import seeds
from train.lanes.runtime import Runtime
from train.lanes.traits import USUAL, Traits
from train.learn import examine, models, optim, tries
from train.process.failures import out_of_memory


def new(config: Config, images: ImageData, runtime: Runtime) -> tuple[nn.Module, Optimizer]:
    """Model and optimizer, new from the seed.

    Raises:
        UsageError: there is no such model, or it does not fit the data.
    """
    model = _built(config, images, runtime)
    return model, optim.build(config.optim, model)


def _built(config: Config, images: ImageData, runtime: Runtime, *, tried: bool = True) -> nn.Module:
    seeds.seed_start(config.seed)
    model = models.build(config.model, len(images.classes), images.train.shape, tried=tried)
    return model.to(runtime.device)


def traits(config: Config, images: ImageData, runtime: Runtime, model: nn.Module) -> Traits:
    """What the model does that others do not; `model` is new from the seed. All processes ask: at
    lockstep the main one looks, and at other levels, where a model may talk to others, all do.

    Raises:
        UsageError: it cannot be trained to the same bits; naming what is in the way.
    """
    lockstep = config.reproducibility == "lockstep"
    if config.reproducibility == "fast" or (lockstep and not runtime.main):
        return USUAL
    count = min(tries.SAMPLES, config.micro_batch, len(images.train))
    augmenter = Augmenter(config.augment, images.mean, images.std, runtime.device)
    pixels = images.train.images(torch.arange(count)).to(runtime.device)
    labels = images.train.labels[:count].to(runtime.device)
    samples = tries.Samples(augmenter.normalize(pixels), labels, len(images.classes))
    try:
        with tries.alone() if lockstep else nullcontext():
            twin = _built(config, images, runtime, tried=False)
            looked = examine.examine(model, twin, samples, runtime, lockstep=lockstep)
            third = _built(config, images, runtime, tried=False)
            examine.check_resume(looked, third)
        found = looked.traits()
    except Exception as error:  # whatever a model raises
        if isinstance(error, LockstepError) or out_of_memory(error, config):
            raise
        if "deterministic" in str(error):
            raise models.not_deterministic(config.model.name, error) from error
        if "more than 1 value per channel" in str(error):
            raise UsageError(
                f"batch norm cannot do with the {config.micro_batch} sample that a lane has",
                f"use --lanes {default(config.batch_size)}, or a larger --batch_size",
            ) from error
        raise UsageError(
            f"{config.model.name} fails when it is tried, {type(error).__name__}:"
            f" {first_line(error)}",
            "mend the model; --debug shows where",
        ) from error
    if found.late and not lockstep and runtime.world > 1:
        raise UsageError(
            f"the gradient of {min(found.late)} comes in parts, which DDP cannot add up",
            "checkpoint activations with use_reentrant=False, or use lockstep",
        )
    return found
