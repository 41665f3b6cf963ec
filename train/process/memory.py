"""Whether a training fits into memory, from the model's shapes alone; `tune` measures it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from host import limits
from train.config import Config, Model
from train.lanes.reducer import gradient_copies
from train.learn import models, optim
from train.learn.alone import alone

PROCESS = 0.7e9
"""Bytes of a process before its first tensor: torch, Accelerate, TensorBoard and what they need."""
CONTEXT = 1.0e9
"""Bytes on a GPU before the first tensor: CUDA's context and its libraries' workspaces."""
# What takes more than this share may fail later: evaluation, fragments, other programs.
_NEAR = 0.85

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Need:
    """Bytes that one process needs in training."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Fit:
    """What a training needs beside what there is.

    Attributes:
        wanted: bytes, of all processes that share the place.
        there: bytes.
        place: what that is the memory of, for people.
    """

    need: Need
    wanted: float
    there: float
    place: str

    @property
    def fits(self) -> bool:
        """Whether there is as much as it needs."""
        return self.wanted <= self.there

    @property
    def is_near(self) -> bool:
        """Whether it needs almost all there is, or more."""
        return self.wanted > _NEAR * self.there


def fit(
    config: Config,
    classes: int,
    shape: Shape,
    *,
    resident: int,
    world: int,
    local: int,
    gpus: Sequence[int],
    half: bool,
) -> Fit | None:
    """Whether this machine has the memory for its share of a training.

    Args:
        shape: (C, H, W) of an image.
        resident: bytes of images that each process keeps there.
        world, local: processes in all, and on this machine.
        gpus: those that it is for, by torch's numbers; none: the CPU.
        half: mixed precision.

    Returns:
        None where it cannot be told: the model's sizes follow from numbers, or the system is mute.
    """
    need = of_shapes(config, classes, shape, world=world, half=half)
    if need is None:
        return None
    if gpus:
        least = min(torch.cuda.get_device_properties(n).total_memory for n in gpus)
        return Fit(need, need.total + resident + CONTEXT, least, "GPU memory")
    limit = limits.memory()
    there = limit or limits.memory_total()
    if there is None:
        return None
    wanted = local * (need.total + resident + PROCESS)
    return Fit(need, wanted, there, "the cgroup's limit" if limit else "memory")


def of_shapes(config: Config, classes: int, shape: Shape, *, world: int, half: bool) -> Need | None:
    """What a process of this training needs; None where the model's sizes follow from numbers.

    Args:
        shape: (C, H, W) of an image.
        half: mixed precision.
    """
    try:
        with alone():
            model = blank(config.model, classes, shape)
            kept = saved(model, config.micro_batch, shape)
    except Exception:  # whatever a model raises that cannot do without numbers
        return None
    return estimate(model, config, shape, kept, world=world, half=half)


def blank(config: Model, classes: int, shape: Shape) -> nn.Module:
    """The experiment's model without memory: it has shapes, and no numbers."""
    without = config.model_copy(update={"weights": None})
    with torch.device("meta"):
        return models.build(without, classes, shape)


def estimate(
    model: nn.Module, config: Config, shape: Shape, kept: int, *, world: int, half: bool
) -> Need:
    """Bytes of one process's training step.

    Args:
        shape: (C, H, W) of an image.
        kept: bytes that a lane's forward pass keeps in FP32.
        half: mixed precision: what is kept for the backward pass takes half as much.
    """
    weights = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    # Across processes also what is sent and what comes, or DDP's buckets.
    copies = gradient_copies(config, world) + 2 * (world > 1)
    images = config.micro_batch * math.prod(shape) * 4
    activations = (kept // 2 + weights // 2 if half else kept) + images
    return Need(weights, weights * copies, weights * optim.copies(config.optim), activations)


def saved(model: nn.Module, batch: int, shape: Shape) -> int:
    """Bytes that the forward pass of `batch` images keeps for the backward pass."""
    own = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        number = tensor.untyped_storage()._cdata
        if number not in own:
            kept[number] = tensor
        return tensor

    device = next(model.parameters()).device
    images = torch.zeros(batch, *shape, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        functional.cross_entropy(model(images), labels)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
