"""Will this experiment fit this machine: lanes, data, memory, and room for its checkpoints.

    python -m train doctor --verify configs/cifar10.yaml

Memory is an estimate from the model's own shapes, computed without memory; `tune` measures.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from doctor import cuda
from doctor.finding import Finding, fail, ok, skip, warn
from doctor.machine import Machine
from train import experiment, limits, models
from train.config import Config
from train.data import ImageData
from train.data import load as load_data
from train.errors import TrainError
from train.reduce import gradient_copies

# A process before its first tensor, measured: torch, Accelerate, TensorBoard and what they need.
_PROCESS = 0.7e9
# CUDA's context and its libraries' workspaces.
_CONTEXT = 1.0e9


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


def examine(path: Path, machine: Machine) -> list[Finding]:
    """Each question; those that cannot be asked after a failure are skipped."""
    names = ["lanes", "data", "fits in memory", "checkpoints"]
    found: list[Finding] = []
    try:
        config = experiment.load(path)
        found.append(ok("experiment", f"{path}: {config.name}"))
        world = _processes(machine)
        found.append(_lanes(config, world))
        data = load_data(config.data, fingerprint=False)
        found.append(_data(data))
        blank = config.model.model_copy(update={"weights": None})
        with torch.device("meta"):
            model = models.build(blank, len(data.classes), data.train.shape)
        precision = machine.environ.get("PRECISION") or "no"
        need = estimate(model, config, data.train.shape, world, half=precision != "no")
        found.append(_memory(need, data, world, machine))
        found.append(_checkpoints(need, config, machine))
    except TrainError as error:
        name = ["experiment", *names][len(found)]
        found.append(fail(name, error.problem, "the training would end at once", error.fix))
    done = {f.name for f in found}
    return found + [skip(name, "what comes before it failed") for name in names if name not in done]


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


def _processes(machine: Machine) -> int:
    cpus, gpus = machine.environ.get("CPUS", ""), machine.environ.get("GPUS", "")
    if cpus.isdigit() and int(cpus):
        return int(cpus)
    return int(gpus) if gpus.isdigit() and int(gpus) else max(1, cuda.count())


def _lanes(config: Config, world: int) -> Finding:
    if config.lanes % world:
        fits = [n for n in range(1, config.lanes + 1) if config.lanes % n == 0]
        return fail(
            "lanes", f"{world} processes cannot share {config.lanes} lanes evenly",
            "the training would end at once", f"use {' or '.join(map(str, fits))} processes",
        )  # fmt: skip
    share = f"{world} × {config.lanes // world} × {config.micro_batch}"
    return ok("lanes", f"batch {config.batch_size} = {share} (processes × lanes × micro-batch)")


def _data(data: ImageData) -> Finding:
    size = "×".join(map(str, data.train.shape))
    return ok(
        "data",
        f"{len(data.train):,} training and {len(data.validation):,} validation images of {size},"
        f" {len(data.classes)} classes",
    )


def _memory(need: Need, data: ImageData, world: int, machine: Machine) -> Finding:
    on_cpu = machine.environ.get("CPUS", "").isdigit() or not cuda.count()
    resident = sum(
        split.resident.nbytes
        for split in (data.train, data.validation)
        if split.resident is not None
    )
    if on_cpu:
        here = limits.memory(machine.root) or limits.memory_total(machine.root) or 0
        wanted = world * (need.total + resident + _PROCESS)
        where = f"{here / 2**30:.1f} GiB of memory"
    else:
        here = min(torch.cuda.get_device_properties(n).total_memory for n in range(cuda.count()))
        wanted = need.total + _CONTEXT
        where = f"{here / 2**30:.1f} GiB of each GPU"
    seen = (
        f"about {wanted / 2**30:.1f} of {where} (activations {need.activations / 2**30:.2f},"
        f" weights {need.weights / 2**30:.2f}, gradients {need.gradients / 2**30:.2f},"
        f" optimizer {need.optimizer / 2**30:.2f})"
    )
    fix = "make tune finds the largest micro-batch; --lanes raised, PRECISION=bf16, or more GPUs"
    if here and wanted > here:
        return fail("fits in memory", seen, "it would end in out of memory", fix)
    if here and wanted > 0.85 * here:
        return warn("fits in memory", seen, "it may end in out of memory, hours later", fix)
    return ok("fits in memory", seen)


def _checkpoints(need: Need, config: Config, machine: Machine) -> Finding:
    each = need.weights + need.optimizer
    # The best one is kept besides, and the next is written before the oldest goes.
    wanted = each * (config.checkpoint.keep + 2)
    place = f"{machine.home}/runs"
    free = machine.free(place if os.path.isdir(place) else machine.home)  # noqa: PTH112
    if free is None:
        return skip("checkpoints", "not known on this system")
    seen = f"{wanted / 1e9:.2f} GB of the {free / 1e9:.0f} GB that are free"
    if wanted > free:
        fix = "make room, --checkpoint.keep 1, or runs/ on a larger disk: ln -s /big/runs runs"
        return fail("checkpoints", seen, "the run would end at a save", fix)
    return ok("checkpoints", f"{seen}: {config.checkpoint.keep + 2} × {each / 1e6:.1f} MB")
