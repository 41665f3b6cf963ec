"""Will this experiment fit this machine: lanes, data, memory, and room for its checkpoints.

    python -m train doctor --verify configs/cifar10.yaml

Memory is an estimate from the model's own shapes, computed without memory; `tune` measures.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from doctor import cuda
from doctor.finding import Finding, fail, ok, skip, warn
from doctor.machine import Machine
from train import estimate, experiment, limits
from train.config import Config
from train.data import ImageData
from train.data import load as load_data
from train.errors import TrainError
from train.estimate import CONTEXT, PROCESS, Need


def examine(path: Path, machine: Machine) -> list[Finding]:
    """Each question; those that cannot be asked after a failure are skipped."""
    names = ["lanes", "data", "fits in memory", "checkpoints"]
    found: list[Finding] = []
    try:
        config = experiment.load(path)
        found.append(ok("experiment", f"{path}: {config.name}"))
        world = _processes(machine, config)
        found.append(_lanes(config, world))
        data = load_data(config.data, fingerprint=False)
        found.append(_data(data))
        half = (machine.environ.get("PRECISION") or "no") != "no"
        need = estimate.of(config, len(data.classes), data.train.shape, world, half=half)
        found.append(_memory(need, data, world, machine))
        found.append(_checkpoints(need, config, machine))
    except RuntimeError as error:
        found.append(skip("fits in memory", f"not without numbers: {str(error)[:80]}"))
    except TrainError as error:
        name = ["experiment", *names][len(found)]
        found.append(fail(name, error.problem, "the training would end at once", error.fix))
    done = {f.name for f in found}
    return found + [skip(name, "what comes before it failed") for name in names if name not in done]


def _processes(machine: Machine, config: Config) -> int:
    cpus, gpus = machine.environ.get("CPUS", ""), machine.environ.get("GPUS", "")
    if cpus.isdigit() and int(cpus):
        return int(cpus)
    if gpus.isdigit() and int(gpus):
        return int(gpus)
    # As many as can share the lanes, as train.launch does.
    return max((n for n in range(1, cuda.count() + 1) if config.lanes % n == 0), default=1)


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
        wanted = world * (need.total + resident + PROCESS)
        where = f"{here / 2**30:.1f} GiB of memory"
    else:
        here = min(torch.cuda.get_device_properties(n).total_memory for n in range(cuda.count()))
        wanted = need.total + CONTEXT
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
