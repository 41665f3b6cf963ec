"""How much memory a training needs, from the model's shapes alone; `tune` measures it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from train import models
from train.config import Config
from train.reduce import gradient_copies

PROCESS = 0.7e9
"""Bytes of a process before its first tensor: torch, Accelerate, TensorBoard and what they need."""
CONTEXT = 1.0e9
"""Bytes on a GPU before the first tensor: CUDA's context and its libraries' workspaces."""


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


def of(
    config: Config, classes: int, shape: tuple[int, int, int], world: int, *, half: bool
) -> Need:
    """What the experiment's model needs, on images of (C, H, W)."""
    blank = config.model.model_copy(update={"weights": None})
    with torch.device("meta"):
        model = models.build(blank, classes, shape)
    return estimate(model, config, shape, world, half=half)


def estimate(
    model: nn.Module, config: Config, shape: tuple[int, int, int], world: int, *, half: bool
) -> Need:
    """Bytes of one process's training step.

    Args:
        model: on the meta device: it has shapes, and no memory.
        shape: (C, H, W) of an image.
        half: mixed precision: what is kept for the backward pass takes half as much.
    """
    weights = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    copies = gradient_copies(config, world) + 2 * (
        world > 1
    )  # what is sent and what comes, or DDP's buckets
    moments = 2 if config.optim.name == "adamw" else int(config.optim.momentum > 0)
    kept = saved(model, config.micro_batch, shape)
    images = config.micro_batch * math.prod(shape) * 4
    activations = (kept // 2 + weights // 2 if half else kept) + images
    return Need(weights, weights * copies, weights * moments, activations)


def saved(model: nn.Module, batch: int, shape: tuple[int, int, int]) -> int:
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
