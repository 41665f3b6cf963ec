"""From an experiment to the parts that train it."""

import os
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from train import estimate, limits, models, optim, order
from train.checkpoint import Checkpoint
from train.config import Config
from train.data import ImageData
from train.data import load as load_data
from train.errors import UsageError
from train.interrupt import StopFlag
from train.parts import State
from train.reduce import AllReduce, LaneTree, Reducer
from train.runtime import Runtime


def data(config: Config, here: Runtime, stop: StopFlag) -> ImageData:
    """Both splits, with the fingerprint where the level asks for it."""
    # To hash a data set that is too large for memory is to read all of it: once, and not for speed.
    hashed = here.main and config.reproducibility != "fast"
    with stop.breaks():  # a download may take hours
        return load_data(config.data, fingerprint=hashed)


def learner(
    config: Config, images: ImageData, found: Checkpoint | None, here: Runtime
) -> tuple[nn.Module, Optimizer, State]:
    """Model, optimizer and state: new from the seed, or as a checkpoint left them."""
    torch.manual_seed(order.key(config.seed) & (2**63 - 1))
    model = models.build(config.model, len(images.classes), images.train.shape).to(here.device)
    optimizer = optim.build(config.optim, model)
    if found is None:
        return model, optimizer, State()
    found.restore(model, optimizer)
    if here.accelerator.scaler and found.state["scaler"]:
        here.accelerator.scaler.load_state_dict(found.state["scaler"])
    kept = {f.name: found.state[f.name] for f in fields(State) if f.name in found.state}
    return model, optimizer, State(**kept)


def samples(config: Config, images: ImageData) -> int:
    """Samples the run consumes.

    Raises:
        UsageError: a batch is larger than the data.
    """
    if config.batch_size > len(images.train):
        raise UsageError(
            f"batch_size {config.batch_size} is larger than the {len(images.train)} training"
            " samples",
            "choose a smaller --batch_size",
        )
    count = round(config.epochs * len(images.train))
    if config.max_steps is not None:
        count = min(count, config.max_steps * config.batch_size)
    if count % config.batch_size == 1 and count > 1:
        count -= 1  # batch norm cannot do with a last batch of one
    return max(1, count)


def tight(config: Config, images: ImageData, here: Runtime) -> str | None:
    """What to say where there is less memory than this training is likely to need."""
    half = here.accelerator.mixed_precision != "no"
    if here.device.type == "cuda":
        there: int | None = torch.cuda.get_device_properties(here.device).total_memory
        base, share, where = estimate.CONTEXT, 1, "this GPU"
    else:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        there, base, share, where = limits.memory(), estimate.PROCESS, local, "the cgroup's limit"
    if there is None:
        return None
    try:
        need = estimate.of(config, len(images.classes), images.train.shape, here.world, half=half)
    except RuntimeError:  # a model that cannot do without numbers: this is advice, and no more
        return None
    wanted = share * (need.total + base)
    if wanted <= there:
        return None
    return (
        f"about {wanted / 2**30:.1f} GiB are needed, and {where} has {there / 2**30:.1f}: raise"
        " lanes (other bits) or the number of processes, or PRECISION=bf16; make tune measures"
    )


def wrap(unwrapped: nn.Module, config: Config, here: Runtime) -> tuple[nn.Module, Reducer]:
    """The model as it is called, and what sums over its lanes."""
    tree = config.reproducibility == "lockstep"
    # Accelerate's evaluation mode is precision and device, without DDP.
    alone = tree or here.world == 1
    model: Any = here.accelerator.prepare_model(unwrapped, evaluation_mode=alone)
    reducer: Reducer = (
        LaneTree(unwrapped, here.rank, here.world, len(here.lanes))
        if tree
        else AllReduce(model, here.world)
    )
    # Not dynamic: which shapes came before must not decide how one is computed.
    wrapped: Any = torch.compile(model, dynamic=False) if config.model.compile else model
    return wrapped, reducer
