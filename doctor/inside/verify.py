"""Will this experiment fit this machine: lanes, data, memory, and room for its checkpoints.

    python -m doctor.inside --verify configs/cifar10.yaml

Memory is an estimate from the model's own shapes, computed without memory; `tune` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from doctor.finding import Finding, fail, in_its_file, ok, skip, warn
from doctor.inside import devices
from host import plan, stages
from host.errors import LockstepError, first_line
from host.lanes import said, share
from host.machine import Machine
from host.plan import Plan
from train import assemble, experiment
from train.config import Config
from train.data import ImageData, check_place
from train.data import load as load_data
from train.learn import models, optim
from train.process import fitting, memory
from train.process.fitting import Fit
from train.process.memory import Need

_NUMBERS = "not known: model or loss decide by numbers, and there are none before it trains"


def examine(path: Path, machine: Machine) -> list[Finding]:
    """Each question; those that cannot be asked after a failure are skipped."""
    names = ["lanes", "data", "fits in memory", "checkpoints"]
    found: list[Finding] = []
    try:
        config = experiment.load(path)
        found.append(ok("experiment", f"{path}: {config.name}"))
        planned = plan.make(
            machine.environ,
            devices.count(),
            config.lanes,
            level=config.reproducibility,
            portable=config.portable,
        )
        found.append(_lanes(config, planned, machine.environ))
        device = torch.device(planned.device)
        check_place(config.data, device)
        optim.check_place(config.optim, device)
        data = load_data(config.data, config.augment)
        assemble.samples(config, data)
        on_gpu = config.data.cache_on == "gpu"
        found.append(_data(data))
        _check_model(config, data)
        staged = stages.asked(machine.environ)
        fit = fitting.fit(
            config,
            len(data.classes),
            data.train.shape,
            resident=data.wanted(config.data) if on_gpu else data.resident(device),
            world=planned.processes,
            local=planned.processes,
            gpus=range(planned.processes) if planned.device == "cuda" else (),
            half=planned.precision != "no",
            sharded=planned.sharded,
            staged=staged,
            visible=devices.count(),
        )
        if fit is None:
            why = "not known of stages" if staged else _NUMBERS
            found += [skip("fits in memory", why), skip("checkpoints", why)]
        else:
            found += [_memory(fit), _checkpoints(fit.need, config, machine)]
    except (LockstepError, RuntimeError) as error:
        name = ["experiment", *names][len(found)]
        if isinstance(error, LockstepError):
            seen, fix = error.problem, in_its_file(error.fix)
        else:  # torch's own, of a GPU that is unwell or data that it cannot take
            seen = f"{type(error).__name__}: {first_line(error)}"
            fix = "mend what the rows above say of CUDA; else `make train` says where"
        found.append(fail(name, seen, "the training would end at once", fix))
    done = {f.name for f in found}
    return found + [skip(name, "what comes before it failed") for name in names if name not in done]


def _lanes(config: Config, planned: Plan, environ: Mapping[str, str]) -> Finding:
    world, asked = planned.processes, environ.get("SHARES")
    try:
        level, size = config.reproducibility, config.batch_size
        sharded = planned.sharded
        staged = stages.asked(environ)
        if staged is not None:
            stages.check(
                staged,
                world,
                lanes=config.lanes,
                level=level,
                precision=planned.precision,
                sharded=sharded,
                shares=asked,
                elastic=False,
                model=config.model,
            )
            cut = f"{config.lanes} × {config.micro_batch}"
            copies = world // staged.count
            many = f"{copies} copies of " if copies > 1 else ""
            cut = f"{many}{staged.count} stages; batch {size} = {cut}"
            return ok("lanes", f"{cut} (lanes × micro-batch)")
        shares = share(config.lanes, world, batch=size, level=level, asked=asked, sharded=sharded)
    except LockstepError as error:
        return fail("lanes", error.problem, "the training would end at once", error.fix)
    even = len({len(share) for share in shares}) == 1
    lanes = f"{world} × {len(shares[0])}" if even else f"({said(shares)})"
    cut = f"{lanes} × {config.micro_batch}"
    return ok("lanes", f"batch {config.batch_size} = {cut} (processes × lanes × micro-batch)")


def _data(data: ImageData) -> Finding:
    size = "×".join(map(str, data.train.shape))
    return ok(
        "data",
        f"{len(data.train):,} training and {len(data.validation):,} validation images of {size},"
        f" {len(data.classes)} classes",
    )


def _check_model(config: Config, data: ImageData) -> None:
    """There is such a model: as one without memory, or, where it follows from numbers, as it is."""
    words = config.model, len(data.classes), data.train.shape
    try:
        memory.blank(*words)
    except LockstepError:
        models.build(*words)


def _memory(fit: Fit) -> Finding:
    need = fit.need
    seen = (
        f"about {fit.wanted / 2**30:.1f} of the {fit.there / 2**30:.1f} GiB of {fit.place}"
        f" (activations {need.activations / 2**30:.2f}, weights {need.weights / 2**30:.2f},"
        f" gradients {need.gradients / 2**30:.2f}, optimizer {need.optimizer / 2**30:.2f}"
    )
    if need.copy:
        seen += f", the copy that is saved {need.copy / 2**30:.2f}"
    if need.start > need.training + need.copy:
        seen += f"; the most before the first step, where it is tried: {need.start / 2**30:.2f}"
    seen += "; libraries and data are the rest)"
    if not fit.fits:
        fix = f"{fit.ways}; make tune finds the largest micro-batch"
        return fail("fits in memory", seen, "it would end in out of memory", fix)
    if fit.is_near:
        fix = "make tune finds the largest micro-batch"
        return warn("fits in memory", seen, "it may end in out of memory, hours later", fix)
    return ok("fits in memory", seen)


def _checkpoints(need: Need, config: Config, machine: Machine) -> Finding:
    each = need.saved
    # The best one is kept besides, and the next is written before the oldest goes.
    wanted = each * (config.checkpoint.keep + 2)
    place = f"{machine.home}/runs"
    free = machine.free(place if machine.exists(place) else machine.home)
    if free is None:
        return skip("checkpoints", "not known on this system")
    seen = f"{wanted / 1e9:.2f} GB of the {free / 1e9:.0f} GB that are free"
    if wanted > free:
        fix = "make room, --checkpoint.keep 1, or runs/ on a larger disk: ln -s /big/runs runs"
        return fail("checkpoints", seen, "the run would end at a save", fix)
    return ok(
        "checkpoints",
        f"{seen}: {config.checkpoint.keep + 2} × {each / 1e6:.1f} MB, with the"
        " best one and the next",
    )
