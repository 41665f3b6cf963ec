"""Whether a training fits into memory, and what would make it fit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from host import limits
from host.errors import UsageError
from host.lanes import can_share, cutting, sharing
from train.config import Config
from train.lanes import blocks
from train.lanes.launched import check_shardable
from train.learn.alone import alone
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
        visible: GPUs that there are, used or not.

    Returns:
        None where it cannot be told: the model's sizes follow from numbers, or the system is mute.
    """
    need = of_shapes(config, classes, shape, world=world, half=half, sharded=sharded)
    if need is None:
        return None
    if gpus:
        most: float | None = min(torch.cuda.get_device_properties(n).total_memory for n in gpus)
        place, each, count = "GPU memory", resident + CONTEXT, 1
        need = replace(need, copy=0)  # in the host's
    else:
        limit = limits.memory()
        most = limit or limits.memory_total()
        place = "the cgroup's limit" if limit else "memory"
        each, count = resident + PROCESS, local
    if most is None:
        return None
    start = need.start + (count - 1) * need.others
    found = Fit(need, max(count * need.training + need.copy, start) + count * each, most, place)
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
        visible=visible,
    )
    return replace(found, ways=found_ways)


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
    visible: int = 0,
) -> str:
    """What would make a training fit that does not, as words of commands, the least change first.

    Args:
        shape: (C, H, W) of an image.
        room: bytes for what each process needs.
        host: they are the host's, where what is written in the background lies too.
        sharded: the weights are spread over the processes.
        visible: GPUs that there are, used or not.
    """

    def fits(other: Config, half: bool = half, over: int = 0) -> bool:
        """Whether it does; sharded over so many processes, where any number is given."""
        spread = bool(over) or sharded
        need = of_shapes(other, classes, shape, world=over or world, half=half, sharded=spread)
        if need is None:
            return False
        copy = need.copy / (world if spread else 1)
        return max(need.training + host * copy, need.start) <= room

    def lanes(other: Config, half: bool = half) -> int | None:
        counts = cutting(config.batch_size, power_of_two=config.lockstep)
        level = config.reproducibility
        more = (n for n in counts if n > config.lanes and can_share(n, world, level))
        return next((n for n in more if fits(other.model_copy(update={"lanes": n}), half)), None)

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
    if not (sharded or host) and _shardable(config, classes, shape):
        many = (n for n in sharing(config.lanes, "fast") if max(2, world) <= n <= visible)
        count = next((n for n in many if fits(config, over=n)), None)
        if count is not None:
            # At FP16, whose loss scaler is not for sharded weights, the bits would be others.
            said = "PRECISION=bf16" if half else "(the same bits)"
            found.append(f"GPUS={count} ACCELERATE=fsdp {said}")
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
