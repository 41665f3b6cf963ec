"""What may go worse than it could, told before the first step."""

import json
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from host import lanes, launcher
from host.errors import CheckpointError
from host.lanes import default
from host.stages import Stages
from host.text import some
from train.config import Config
from train.lanes import order
from train.lanes.sharding import Sharding
from train.lanes.staging import Staging
from train.learn import optim
from train.parts import Parts
from train.process import fitting
from train.record import verification
from train.record.facts import Facts

# Samples of a lane that keep a large GPU busy; ResNet-50 on an H200 takes 30 ms for 128 in one
# lane, and 153 ms in eight (docs/GPU.md).
_BUSY = 64


def doubts(parts: Parts) -> Iterator[str]:
    """A line for each."""
    config, runtime, images = parts.config, parts.runtime, parts.data
    yield from images.doubts
    last = ends_in(parts.unwrapped)
    if isinstance(last, (nn.Softmax, nn.Sigmoid)) and config.optim.loss in (None, "bce"):
        yield (
            f"the model ends in {type(last).__name__}, and the loss applies one itself: return the"
            " values before it (logits), or it learns slowly and badly"
        )
    yield from _of_weights(parts)
    if images.skipped:
        folders = sum(name.endswith("/") for name in images.skipped)
        bad = len(images.skipped) - folders
        count = len(images.train) + len(images.validation) + bad
        beside = f", and {folders} folder{'s' * (folders > 1)}" * (folders > 0)
        yield (
            f"{bad:,} of {count:,} pictures{beside} cannot be used, and are skipped:"
            f" {some(images.skipped)}; run.json lists them"
        )
    if runtime.unspread:
        yield "ACCELERATE=fsdp spreads weights over processes, and there is one: it has them whole"
    cuts = parts.sharding.stages.cuts if isinstance(parts.sharding, Staging) else ()
    found = fitting.fit(
        config,
        len(images.classes),
        images.train.shape,
        resident=images.resident(runtime.device),
        world=runtime.world,
        local=launcher.local_world(),
        gpus=[torch.cuda.current_device()] if runtime.device.type == "cuda" else [],
        half=runtime.accelerator.mixed_precision != "no",
        sharded=isinstance(parts.sharding, Sharding),
        staged=Stages(len(cuts) + 1, cuts, "") if cuts else None,
        # Over several machines each has as many.
        visible=torch.cuda.device_count() * (launcher.local_world() == runtime.world),
    )
    if found is not None and not found.fits:
        yield (
            f"about {found.wanted / 2**30:.1f} GiB are needed, and {found.place} has"
            f" {found.there / 2**30:.1f}: use {found.ways}; make tune measures"
        )
    fewer = larger_lanes(config, runtime.world)
    room = found is None or not found.is_near
    if fewer is not None and room and runtime.device.type == "cuda" and parts.pipeline is None:
        yield (
            f"a lane of {config.micro_batch} images keeps no large GPU busy: --lanes {fewer} is"
            f" faster there (other bits, and at most {fewer} GPU{'s' * (fewer > 1)})"
        )
    steps = order.steps(parts.samples, config.batch_size)
    if config.max_steps is not None and steps < config.max_steps:
        enough = -(-config.max_steps * config.batch_size // len(images.train))
        yield (
            f"max_steps is {config.max_steps:,}, and the run ends after epochs:"
            f" {config.epochs:g}, which are {steps:,} steps; --epochs {enough} has all of them"
        )
    warmup = optim.warmup(config.optim, order.steps(len(images.train), config.batch_size))
    if warmup > steps:
        yield (
            f"the warm-up takes {warmup} steps, and the run has {steps}: the learning"
            f" rate does not reach {config.optim.lr:g}; set --optim.warmup {max(1, steps // 10)}"
            f"{' and --optim.warmup_epochs 0' * (config.optim.warmup_epochs > 0)}"
            " (about a tenth of the run)"
        )
    every = config.eval.every or order.steps(len(images.train), config.batch_size)
    if config.eval.patience and steps < (config.eval.patience + 1) * every:
        yield (
            f"eval.patience {config.eval.patience} ends nothing: an evaluation comes every"
            f" {every} steps, and the run has {steps}; --eval.every sets them closer"
        )
    side, cutout = images.train.shape[-1], config.augment.cutout
    if cutout >= side:
        yield (
            f"augment.cutout {cutout} covers most of a picture of {side} pixels, or all of it: set"
            f" it to {side // 2} or less"
        )
    norms = [m for m in parts.unwrapped.modules() if isinstance(m, _BatchNorm) and m.training]
    if norms and config.micro_batch < lanes.FEW and config.lanes > 1:
        yield (
            f"batch norm sees a lane at a time, and a lane has {config.micro_batch} of the batch's"
            f" {config.batch_size} samples, which costs accuracy: --lanes"
            f" {default(config.batch_size)}, or a larger --batch_size (other bits either way)"
        )


def ends_in(model: nn.Module) -> nn.Module | None:
    """A model's last module, as far as that is plain: the last of it, or of a sequence there."""
    last = [*model.children()][-1:]
    while last and isinstance(last[0], nn.Sequential):
        last = [*last[0].children()][-1:]
    return last[0] if last else None


def _of_weights(parts: Parts) -> Iterator[str]:
    """Where the weights to begin with are a run's: what its pictures were, and these are not."""
    file, images = parts.config.model.file, parts.data
    try:
        state = json.loads((file.parent / "state.json").read_text()) if file else None
        before = Facts.read(state, str(file)) if isinstance(state, dict) else None
    except (OSError, ValueError, CheckpointError):  # of no run
        return
    if before is None:
        return
    averaged = verification.average_of(file) if file else None
    if averaged is not None:
        yield (
            "the run of these weights measured their average, and this file has them as they were:"
            f" the average is --model.weights {averaged}"
        )
    if before.classes != images.classes and len(before.classes) == len(images.classes):
        yield (
            f"the weights to begin with are of other classes ({some(before.classes)}), and of as"
            " many: the last layer begins as it was for those"
        )
    theirs, ours = (
        [", ".join(f"{x:.4f}" for x in each) for each in (of.mean, of.std)]
        for of in (before, images)
    )
    if theirs != ours:
        mean, std = theirs
        yield (
            "the weights to begin with saw pictures normalised otherwise: --data.mean"
            f" '[{mean}]' --data.std '[{std}]' does as they did"
        )


def larger_lanes(config: Config, world: int) -> int | None:
    """A number of lanes that a GPU computes faster than these, since each is larger; None: none.

    Args:
        world: GPUs that share them.
    """
    level, size = config.reproducibility, config.batch_size
    fewer = [n for n in (1, 2, 4, 8) if n < config.lanes and size % n == 0]
    fewer = [n for n in fewer if lanes.can_share(n, world, level)]
    # The most that are busy: as many GPUs as can be may share them later.
    busy = [n for n in fewer if config.batch_size // n >= _BUSY]
    return max(busy, default=None) if config.micro_batch < _BUSY / 2 else None
