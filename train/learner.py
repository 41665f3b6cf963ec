"""Model and optimizer, new from the seed, and what the model does that others do not."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from host import dotted
from host.errors import LockstepError, UsageError, first_line
from host.lanes import default
from train.config import Config
from train.data import Augmenter, ImageData, Split
from train.lanes import order, seeds
from train.lanes.runtime import Runtime
from train.lanes.settings import settings
from train.lanes.traits import USUAL, Traits
from train.learn import examine, loss, models, optim, portable, tries
from train.learn.alone import alone
from train.process.failures import out_of_memory

# Images in the largest batch that is tried.
_PICTURES = 32
Place = Callable[[], AbstractContextManager[None]]


def new(config: Config, images: ImageData, runtime: Runtime) -> tuple[nn.Module, Optimizer]:
    """Model and optimizer, new from the seed.

    Raises:
        UsageError: there is no such model, or it cannot be built.
    """
    model = _built(config, images, runtime)
    return model, optim.build(config, model)


def _built(config: Config, images: ImageData, runtime: Runtime) -> nn.Module:
    dotted.load_all(config.own_code)  # an import may draw numbers, or seed: before we do
    seeds.seed_start(config.seed)
    # At lockstep a constructor that asks is told that this process is the only one.
    with alone() if config.lockstep else nullcontext():
        model = models.build(config.model, len(images.classes), images.train.shape)
    return model.to(runtime.device)


def traits(
    config: Config, images: ImageData, runtime: Runtime, model: nn.Module, samples: int | None
) -> Traits:
    """What the model does that others do not; `model` is new from the seed. All processes ask: at
    lockstep the main one looks, and at other levels, where a model may talk to others, all do.

    Args:
        samples: how many the training consumes: small batches that come through are tried; None:
            there is none to be tried.

    Raises:
        UsageError: it does not fit the data, or cannot be trained to the same bits; naming what is
            in the way.
    """
    level = config.reproducibility
    if (level == "lockstep" and not runtime.main) or (level == "fast" and samples is None):
        return USUAL
    # At lockstep no model is to make anything of how many processes there are.
    lockstep = level == "lockstep"
    one_of_many = partial(alone, launched=True) if lockstep else nullcontext
    one_of_none = partial(alone, launched=False) if lockstep else nullcontext

    def another(place: Place, like: tries.Samples) -> tries.Tries:
        return tries.Tries(_built(config, images, runtime), like, runtime, place, own)

    own = loss.tried(config.optim)
    few = _samples(config, images, runtime, tries.SAMPLES)
    _check_synchronised(model, config, runtime, samples or 0)
    compiled = portable.compiled()
    try:
        looked = another(one_of_many, few)
        if level == "fast":
            _try_sizes(looked, config, images, samples)
            return USUAL
        # Before anything else: what a model does once shows in its first pass.
        examine.check_twins(model, looked.model)
        try:
            examine.examine(looked)
        except LockstepError:
            raise
        except Exception:  # whatever a model raises; the sizes may say better what is in the way
            _try_sizes(looked, config, images, samples)
            if _takes(looked, few.images):
                raise
            looked = another(one_of_many, _samples(config, images, runtime, config.micro_batch))
            examine.examine(looked)
        examine.check_resume(looked, another(one_of_none, looked.samples))
        _try_sizes(looked, config, images, samples)
        if config.portable:
            pictures = partial(_pictures, config, images, runtime)
            new_one = partial(another, one_of_none, looked.samples)
            portable.check(new_one, pictures, config, compiled)
        _check_settings(runtime)
    except Exception as error:  # whatever a model raises
        _explain(config, error)
    found = looked.traits()
    if found.late and level != "lockstep" and runtime.world > 1:
        raise UsageError(
            f"the gradient of {min(found.late)} comes in parts, which DDP cannot add up",
            "checkpoint activations with use_reentrant=False, or use lockstep",
        )
    return found


def first_pass(config: Config, images: ImageData, runtime: Runtime) -> str:
    """A digest of what a new model gives for the first images, with all gradients: machines that
    compute this model alike have the same. All processes ask, once it has passed `traits`.
    """
    place = alone if config.lockstep else nullcontext

    own = loss.tried(config.optim)

    def tried(count: int) -> str:
        samples, model = _samples(config, images, runtime, count), _built(config, images, runtime)
        return tries.Tries(model, samples, runtime, place, own).train().digest()

    try:
        try:
            return tried(tries.SAMPLES)
        except Exception:  # whatever a model raises that takes other sizes
            return tried(config.micro_batch)
    except Exception as error:  # whatever a model raises: at lockstep the main process tried alone
        _explain(config, error)


def _check_synchronised(model: nn.Module, config: Config, runtime: Runtime, samples: int) -> None:
    """No layer waits for other processes that have another number of lanes, or none."""
    names = (name for name, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm))
    name = next(names, None)
    if name is None:
        return
    if config.lockstep:
        raise UsageError(
            f"{name} is a SyncBatchNorm, which looks at all processes at once",
            "use BatchNorm: at lockstep it sees a lane, on any number of processes",
        )
    last = samples % config.batch_size
    if runtime.world > 1 and 0 < last < 2 * config.lanes:
        raise UsageError(
            f"{name} is a SyncBatchNorm, and the last step has {last} samples for {config.lanes}"
            " lanes: some processes would have none, and the others would wait for them",
            f"--max_steps {max(1, samples // config.batch_size)} leaves that step out",
        )


def _samples(config: Config, images: ImageData, runtime: Runtime, count: int) -> tries.Samples:
    count = min(count, config.micro_batch, len(images.train))
    labels = images.train.labels[:count].to(runtime.device)
    return tries.Samples(_pictures(config, images, runtime, count), labels, len(images.classes))


def _pictures(
    config: Config, images: ImageData, runtime: Runtime, count: int, split: Split | None = None
) -> Tensor:
    """The first images of a split (the training split), as an evaluation would have them."""
    split = split or images.train
    augmenter = Augmenter(config.augment, images.mean, images.std, runtime.device)
    pixels = split.images(torch.arange(min(count, len(split))))
    return augmenter.normalize(pixels.to(runtime.device))


def _try_sizes(looked: tries.Tries, config: Config, images: ImageData, samples: int | None) -> None:
    """Pass small batches as they come through: what fails should do so before it trains."""
    if samples is None:
        return
    size, lanes = config.batch_size, config.lanes
    last = order.steps(samples, size) - 1
    ends = [
        order.lane_range(step, lane, lanes=lanes, batch_size=size, total=samples)
        for step in {0, last}
        for lane in range(lanes)
    ]
    validation, each = len(images.validation), config.eval_batch
    sizes = {(stop - start, True) for start, stop in ends}
    sizes |= {(min(each, validation), False), (validation % each, False)}
    # The small ones: those are what a model may not take, and large ones take their time.
    sizes = {(count, training) for count, training in sizes if 0 < count <= _PICTURES}
    if config.reproducibility == "fast" or not sizes:
        sizes = {(2, True)}
    seen = {
        True: _pictures(config, images, looked.runtime, _PICTURES),
        False: _pictures(config, images, looked.runtime, _PICTURES, images.validation),
    }
    batches = [(seen[training][:n], training) for n, training in sorted(sizes, reverse=True)]
    # Each other size, whatever the batches.
    if seen[False].shape[1:] != images.train.shape:
        batches.append((seen[False][:each], False))
    lane = max(2, config.micro_batch)
    batches += [(seen[True][:lane, :, :side, :side], True) for side in config.augment.sizes or []]
    passed = False
    for pictures, training in batches:
        count, _, height, width = pictures.shape
        try:
            looked.size(pictures, training=training)
            passed = True
        except (LockstepError, MemoryError):
            raise
        except Exception as error:
            if "deterministic" in str(error) or out_of_memory(error, config):
                raise
            if "more than 1 value per channel" in str(error):
                raise UsageError(
                    f"batch norm cannot do with the {count} sample{'s' * (count > 1)} that a lane"
                    " has",
                    f"use --lanes {default(size)}, or a larger --batch_size",
                ) from error
            said = first_line(error) or type(error).__name__
            raise UsageError(
                f"{config.model.name} cannot take {width}×{height} images, {count} of them: {said}",
                f"leave {'augment.sizes' if training else 'eval.size and eval.crop'} away: it takes"
                " no other size than data.size"
                if pictures.shape[1:] != images.train.shape
                else "choose --batch_size, --lanes and --eval.batch_size so that it gets sizes it"
                " takes"
                if passed
                else "mend its layers; --debug shows where"
                if dotted.is_path(config.model.name)
                else "use --model.stem small, a larger --data.size, or a smaller model",
            ) from error


def _takes(looked: tries.Tries, images: Tensor) -> bool:
    try:
        looked.size(images, training=True)
    except Exception:  # of another size than those that it has passed
        return False
    return True


def _explain(config: Config, error: Exception) -> NoReturn:
    if isinstance(error, LockstepError) or out_of_memory(error, config):
        raise error
    if "deterministic" in str(error):
        said = str(error).strip().split(", but")[0].split(". ")[0]
        raise UsageError(
            f"{config.model.name}: {said}",
            "use another layer there, or --reproducibility fast",
        ) from error
    raise UsageError(
        f"{config.model.name} fails when it is tried, {type(error).__name__}: {first_line(error)}",
        "mend the model; --debug shows where",
    ) from error


def _check_settings(runtime: Runtime) -> None:
    """The model has left alone what the trainer has pinned."""
    now = settings()
    for name, value in runtime.settings.items():
        if now[name] != value:
            raise UsageError(
                f"the model sets {name} to {now[name]}, and the trainer has it at {value}",
                "leave it to the trainer: it decides the bits",
            )
