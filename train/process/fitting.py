"""Whether a training fits into memory, and what would make it fit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from host import limits
from host.errors import UsageError
from host.lanes import can_share, cutting, sharing
from host.stages import Stages
from train.config import Config
from train.lanes import blocks
from train.lanes.launched import check_shardable
from train.learn.alone import alone
from train.process import stagewise
from train.process.memory import CONTEXT, PROCESS, Need, Shape, blank, of_shapes

# What takes more than this share may fail later: evaluation, fragments, other programs.
_NEAR = 0.85


@dataclass(frozen=True)
class Fit:
    """What a training needs beside what there is.

    Attributes:
        wanted: bytes, of all processes that share the place.
        there: bytes.
        place: what that is the memory of, for people.
        ways: what would make it fit, where it does not.
    """

    need: Need
    wanted: float
    there: float
    place: str
    ways: str = ""

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
    sharded: bool = False,
    staged: Stages | None = None,
    visible: int = 0,
) -> Fit | None:
    """Whether this machine has the memory for its share of a training.

    Args:
        shape: (C, H, W) of an image.
        resident: bytes of images that each process keeps there.
        world, local: processes in all, and on this machine.
        gpus: those that it is for, by torch's numbers; none: the CPU.
        half: mixed precision.
        sharded: the weights are spread over the processes.
        staged: the model is cut into stages; there may be several copies of it.
        visible: GPUs that there are, used or not.

    Returns:
        None where it cannot be told: the model's sizes follow from numbers, or the system is mute.
    """
    needs = _needs(
        config,
        classes,
        shape,
        world=world,
        half=half,
        sharded=sharded,
        staged=staged,
        host=not gpus,
    )
    if needs is None:
        return None
    need = max(needs, key=lambda need: need.training)
    if gpus:
        most: float | None = min(torch.cuda.get_device_properties(n).total_memory for n in gpus)
        place, each, needs = "GPU memory", resident + CONTEXT, [need]
        need = replace(need, copy=0)  # in the host's
    else:
        limit = limits.memory()
        most = limit or limits.memory_total()
        place = "the cgroup's limit" if limit else "memory"
        each, needs = resident + PROCESS, needs[:local]
    if most is None:
        return None
    count = len(needs)
    start = need.start + (count - 1) * need.others
    training = sum(each.training for each in needs) + need.copy
    found = Fit(need, max(training, start) + count * each, most, place)
    if found.fits:
        return found
    found_ways = ways(
        config,
        classes,
        shape,
        world=world,
        half=half,
        room=most / count - each,
        host=not gpus,
        sharded=sharded,
        staged=staged,
        visible=visible,
    )
    return replace(found, ways=found_ways)


def _needs(
    config: Config,
    classes: int,
    shape: Shape,
    *,
    world: int,
    half: bool,
    sharded: bool,
    staged: Stages | None,
    host: bool,
) -> list[Need] | None:
    """What each process needs."""
    if staged is not None:
        among = max(1, world // staged.count)
        return stagewise.needs(config, classes, shape, staged, half=half, host=host, copies=among)
    need = of_shapes(config, classes, shape, world=world, half=half, sharded=sharded)
    return None if need is None else [need] * world


def ways(
    config: Config,
    classes: int,
    shape: Shape,
    *,
    world: int,
    half: bool,
    room: float,
    host: bool = False,
    sharded: bool = False,
    staged: Stages | None = None,
    visible: int = 0,
) -> str:
    """What would make a training fit that does not, as words of commands, the least change first.

    Args:
        shape: (C, H, W) of an image.
        room: bytes for what each process needs.
        host: they are the host's, where what is written in the background lies too.
        sharded: the weights are spread over the processes.
        staged: the model is cut into stages.
        visible: GPUs that there are, used or not.
    """

    def fits(
        other: Config,
        half: bool = half,
        spread: bool = sharded,
        cut: Stages | None = staged,
        count: int = world,
    ) -> bool:
        """Whether it does, on so many processes; sharded over them, or cut into stages."""
        needs = _needs(
            other,
            classes,
            shape,
            world=count,
            half=half,
            sharded=spread,
            staged=cut,
            host=host,
        )
        if needs is None:
            return False
        every = [need.training for need in needs]
        # Stages are unlike, and on the host they share one room.
        training = sum(every) / len(every) if host else max(every)
        copy = needs[0].copy / (count if spread or cut else 1)
        return max(training + host * copy, needs[0].start) <= room

    def lanes(other: Config, half: bool = half) -> int | None:
        counts = cutting(config.batch_size, power_of_two=config.lockstep)
        level = config.reproducibility
        more = (n for n in counts if n > config.lanes)
        more = (n for n in more if staged or can_share(n, world, level))
        return next((n for n in more if fits(other.model_copy(update={"lanes": n}), half)), None)

    def over_gpus() -> str | None:
        if _shardable(config, classes, shape):
            many = (n for n in sharing(config.lanes, "fast") if max(2, world) <= n <= visible)
            count = next((n for n in many if fits(config, spread=True, count=n)), None)
            return None if count is None else f"GPUS={count} ACCELERATE=fsdp"
        if not config.lockstep or config.model.compile or config.model.channels_last:
            return None
        with alone():
            model = blank(config.model, classes, shape)
        if len({parameter.dtype for parameter in model.parameters()}) > 1:
            return None
        for cut in (Stages(n, (), "") for n in range(2, visible + 1)):
            # As many copies of the model as there are GPUs for, of those that were to be used.
            count = max(1, min(world // cut.count, config.lanes)) * cut.count
            if fits(config, cut=cut, count=count):
                return f"GPUS={count} STAGES={cut.count}"
        return None

    found: list[str] = []
    if host and config.checkpoint.background:
        checkpoint = config.checkpoint.model_copy(update={"background": False})
        if fits(config.model_copy(update={"checkpoint": checkpoint})):
            found.append(
                "--checkpoint.background false (the same bits, and each save is waited for)"
            )
    again = None if config.model.compile or config.model.activation_checkpointing else config
    if again is not None:
        model = config.model.model_copy(update={"activation_checkpointing": True})
        again = config.model_copy(update={"model": model})
    known = "--model.activation_checkpointing true"
    if again is not None and fits(again):
        found.append(f"{known} (the same bits, slower)")
    if not (sharded or host or staged) and (spread := over_gpus()) is not None:
        # At FP16, whose loss scaler is for whole models, the bits would be others.
        found.append(spread + (" PRECISION=bf16" if half else " (the same bits)" * config.lockstep))
    if not half and not config.portable and fits(config, half=True):
        found.append("PRECISION=bf16")
    if (count := lanes(config)) is not None:
        found.append(f"--lanes {count} (other bits)")
    if not found and again is not None and (count := lanes(again)) is not None:
        found.append(f"{known} with --lanes {count}")
    if not found and not half and not config.portable:
        other = again or config
        count = config.lanes if fits(other, half=True) else lanes(other, half=True)
        if count is not None:
            more = f", {known}" * (again is not None)
            found.append(f"PRECISION=bf16{more}" + f", --lanes {count}" * (count != config.lanes))
    return ", or ".join(found) or "a smaller model, or smaller images"


def _shardable(config: Config, classes: int, shape: Shape) -> bool:
    with suppress(UsageError):
        check_shardable(config, "no")
        with alone():
            model = blank(config.model, classes, shape)
        blocks.check(model, list(blocks.units(model)))
        return True
    return False
