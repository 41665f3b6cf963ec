"""What a training needs of memory, from the model's shapes alone; `tune` measures it."""

import ctypes
import gc
import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from train.config import Config, Model
from train.lanes.blocks import units
from train.lanes.reducer import arriving, exchanged_copies, gradient_copies, waiting
from train.learn import activations, models, optim
from train.learn.alone import alone

PROCESS = 0.7e9
"""Bytes of a process before its first tensor: torch, Accelerate, TensorBoard and what they need."""
CONTEXT = 1.0e9
"""Bytes on a GPU before the first tensor: CUDA's context and its libraries' workspaces."""
# Copies of the weights at the most while a model is tried: measured on AlexNet (3.8), ResNet-152
# (3.5), Wide ResNet-101-2 (3.7) and ViT-B/16 (4.2).
_TRIED = 4.2
# And while its first pass is compared with those of other processes: 3.1, 3.3, 3.3 and 3.5.
_COMPARED = 3.5
_MMAP_THRESHOLD = -3  # of mallopt, in glibc's malloc.h
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Need:
    """Bytes that one process needs.

    Attributes:
        start: before the first step, where a process tries the model on a few images.
        others: before the first step, of a process that only compares how it computes it.
        away: of the optimizer's, what is in the host's memory but for updates.
        copy: what is written in the background, in the host's memory, by all processes together.
        saved: in a checkpoint.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    away: int = 0
    start: int = 0
    others: int = 0
    copy: int = 0
    saved: int = 0

    @property
    def training(self) -> int:
        """In a step."""
        # At an update the activations are gone.
        passing = max(0, self.activations - self.away)
        return self.weights + self.gradients + self.optimizer + passing

    @property
    def total(self) -> int:
        """At the most."""
        return max(self.training, self.start)


def give_back(device: torch.device) -> None:
    """Give back to the machine what was freed: what a trial took lies in pieces, and stays the
    process's own until then.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)


def keep_nothing(device: torch.device) -> None:
    """From now on, give back to the machine what a large tensor on the CPU had as soon as it is
    freed. glibc keeps what is smaller than 32 MB, in pieces: of sharded weights, which come and go
    block by block, three times as much as is held.
    """
    if device.type == "cpu":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def of_shapes(
    config: Config,
    classes: int,
    shape: Shape,
    *,
    world: int,
    half: bool,
    sharded: bool = False,
) -> Need | None:
    """What a process of this training needs; None where the model's sizes follow from numbers.

    Args:
        shape: (C, H, W) of an image.
        half: mixed precision.
        sharded: the weights are spread over the processes.
    """
    again = config.model.activation_checkpointing
    try:
        with alone():
            model = blank(config.model, classes, shape)
            kept = saved(model, config.micro_batch, shape, again=again)
    except Exception:  # whatever a model raises that cannot do without numbers
        return None
    return estimate(model, config, shape, kept, world=world, half=half, sharded=sharded)


def blank(config: Model, classes: int, shape: Shape) -> nn.Module:
    """The experiment's model without memory: it has shapes, and no numbers."""
    without = config.model_copy(update={"weights": None})
    with torch.device("meta"):
        return models.build(without, classes, shape)


def estimate(
    model: nn.Module,
    config: Config,
    shape: Shape,
    kept: int,
    *,
    world: int,
    half: bool,
    sharded: bool = False,
) -> Need:
    """Bytes of one process's training step.

    Args:
        shape: (C, H, W) of an image.
        kept: bytes that a lane's forward pass keeps in FP32.
        half: mixed precision: what is kept for the backward pass takes half as much.
        sharded: the weights are spread over the processes.
    """
    sizes = [t.nbytes for t in (*model.parameters(), *model.buffers())]
    weights = sum(sizes)
    images = config.micro_batch * math.prod(shape) * 4
    activations = (kept // 2 + weights // 2 if half else kept) + images
    optimizer = weights * optim.copies(config.optim)
    away = weights * optim.kept(config.optim) * config.optim.offload
    rest = before(weights, optimizer, config)
    if not sharded:
        copies = gradient_copies(config, world) + exchanged_copies(config, world)
        sums = weights * copies + arriving(config, world, sizes)
        return Need(weights, sums, optimizer, activations, away, **rest)
    part = math.ceil(weights / world)
    # Two blocks are whole at a time, and their gradients on the way; the rest stays whole.
    blocks = [sum(p.nbytes for p in block.parameters()) for block in units(model)]
    whole = 2 * max(blocks, default=0) + max(0, weights - sum(blocks))
    sums = waiting(config.lanes // world) if world <= config.lanes else 1
    moments, away = math.ceil(optimizer / world), math.ceil(away / world)
    if (
        not config.lockstep
    ):  # all gradients are added up before they are exchanged, of several lanes
        summed = weights if config.lanes > world else part
        return Need(part + whole, summed + whole, moments, activations, away, **rest)
    return Need(part + whole, sums * part + whole, moments, activations, away, **rest)


def before(weights: int, optimizer: int, config: Config) -> dict[str, int]:
    """What a training needs besides a step, of `Need`: before the first one, and to be saved.

    Args:
        weights, optimizer: bytes of the whole model's.
    """
    start, others = (int(weights * copies) for copies in (_TRIED, _COMPARED))
    if not config.lockstep:  # then all of them try it
        others = start
    saved = weights + optimizer
    copy = saved if config.checkpoint.background else 0
    return {"start": start, "others": others, "copy": copy, "saved": saved}


def saved(model: nn.Module, batch: int, shape: Shape, *, again: bool = False) -> int:
    """Bytes that the forward pass of `batch` images keeps for the backward pass; see `kept`."""
    outside, inside = kept(model, batch, shape, again=again)
    return outside[0] + inside[0]


def kept(
    model: nn.Module,
    batch: int,
    shape: Shape,
    *,
    again: bool = False,
    now: Callable[[], int] = int,
) -> tuple[Counter[int], Counter[int]]:
    """Bytes that the forward pass of `batch` images keeps for the backward pass, by stage: of each
    lane that is under way, and besides, where blocks are computed again, for one block at a time.

    Args:
        again: what blocks keep is computed again for it, one block after another.
        now: the stage that computes.

    Raises:
        UsageError: the model has no blocks.
    """
    own = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    held: dict[tuple[int, int], Tensor] = {}  # by stage and memory: what crosses is in both
    most, outside = Counter[int](), Counter[int]()

    def within(forward: activations.Forward, _modules: list[nn.Module]) -> activations.Forward:
        def call(*args: Any, **named: Any) -> Any:
            stage = now()
            for given in (*args, *named.values()):
                if isinstance(given, Tensor):
                    keep(held, given)
            inside: dict[tuple[int, int], Tensor] = {}
            with saved_tensors_hooks(partial(keep, inside), lambda tensor: tensor):
                out = forward(*args, **named)
            found = sum(_bytes(inside[place]) for place in inside.keys() - held.keys())
            most[stage] = max(most[stage], found)
            return out

        return call

    def keep(tensors: dict[tuple[int, int], Tensor], tensor: Tensor) -> Tensor:
        number = tensor.untyped_storage()._cdata
        if number not in own:
            tensors[now(), number] = tensor
        return tensor

    device = next(model.parameters()).device
    images = torch.zeros(batch, *shape, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    with activations.cut(model, within) if again else nullcontext(1) as blocks:
        if not blocks:
            raise activations.no_blocks()
        with saved_tensors_hooks(partial(keep, held), lambda tensor: tensor):
            functional.cross_entropy(model(images), labels)
    for (stage, _), tensor in held.items():
        outside[stage] += _bytes(tensor)
    return outside, most


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
