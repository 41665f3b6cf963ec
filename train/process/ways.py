"""What would make a training fit into memory that does not."""

from contextlib import suppress
from dataclasses import dataclass

from host.errors import UsageError
from host.lanes import can_share, cutting, sharing
from host.stages import Stages
from train.config import Config
from train.lanes import blocks
from train.lanes.launched import check_shardable
from train.learn import optim
from train.learn.alone import alone
from train.process.memory import Shape, blank
from train.process.needs import needs

_AGAIN = "--model.activation_checkpointing true"
_AWAY = "--optim.offload true"
_WAITED = "--checkpoint.background false"


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
    there = _Room(classes, shape, world, room, host, half, sharded, staged)
    found = _same_bits(there, config, visible)
    if not half and not config.portable and there.fits(config, half=True):
        found.append("PRECISION=bf16")
    if (count := there.lanes(config)) is not None:
        found.append(f"--lanes {count} (other bits)")
    again = _again(config)
    if not found and again is not None and (count := there.lanes(again)) is not None:
        found.append(f"{_AGAIN} with --lanes {count}")
    if not found and not half and not config.portable:
        other = again or config
        fits = there.fits(other, half=True)
        count = config.lanes if fits else there.lanes(other, half=True)
        if count is not None:
            more = f", {_AGAIN}" * (again is not None)
            found.append(f"PRECISION=bf16{more}" + f", --lanes {count}" * (count != config.lanes))
    return ", or ".join(found) or "a smaller model, or smaller images"


@dataclass(frozen=True)
class _Room:
    """What there is for a training that is started so."""

    classes: int
    shape: Shape
    world: int
    room: float
    host: bool
    half: bool
    sharded: bool
    staged: Stages | None

    def fits(
        self,
        config: Config,
        *,
        half: bool | None = None,
        sharded: bool | None = None,
        staged: Stages | None = None,
        world: int | None = None,
    ) -> bool:
        """Whether an experiment fits; in another precision, spread otherwise, on more processes."""
        count = self.world if world is None else world
        spread = self.sharded if sharded is None else sharded
        cut = staged or self.staged
        every = needs(
            config,
            self.classes,
            self.shape,
            world=count,
            half=self.half if half is None else half,
            sharded=spread,
            staged=cut,
            host=self.host,
        )
        if every is None:
            return False
        steps = [need.training for need in every]
        # Stages are unlike, and on the host they share one room.
        training = sum(steps) / len(steps) if self.host else max(steps)
        copy = every[0].copy / (count if spread or cut else 1)
        return max(training + self.host * copy, every[0].start) <= self.room

    def lanes(self, config: Config, *, half: bool | None = None) -> int | None:
        """The fewest lanes, more than there are, with which it fits."""
        level = config.reproducibility
        for count in cutting(config.batch_size, power_of_two=config.lockstep):
            possible = self.staged or can_share(count, self.world, level)
            more = config.model_copy(update={"lanes": count})
            if count > config.lanes and possible and self.fits(more, half=half):
                return count
        return None

    def over(self, config: Config, visible: int) -> str | None:
        """How it would fit on several of the GPUs that there are."""
        if _is_shardable(config, self.classes, self.shape):
            many = (n for n in sharing(config.lanes, "fast") if max(2, self.world) <= n <= visible)
            count = next((n for n in many if self.fits(config, sharded=True, world=n)), None)
            return None if count is None else f"GPUS={count} ACCELERATE=fsdp"
        if not config.lockstep or config.model.compile or config.model.channels_last:
            return None
        with alone():
            model = blank(config.model, self.classes, self.shape)
        if len({parameter.dtype for parameter in model.parameters()}) > 1:
            return None
        for cut in (Stages(n, (), "") for n in range(2, visible + 1)):
            # As many copies of the model as there are GPUs for, of those that were to be used.
            count = max(1, min(self.world // cut.count, config.lanes)) * cut.count
            if self.fits(config, staged=cut, world=count):
                return f"GPUS={count} STAGES={cut.count}"
        return None


def _same_bits(there: _Room, config: Config, visible: int) -> list[str]:
    """Those that change no bit, or none at lockstep."""
    found: list[str] = []
    if there.host and config.checkpoint.background:
        checkpoint = config.checkpoint.model_copy(update={"background": False})
        if there.fits(config.model_copy(update={"checkpoint": checkpoint})):
            found.append(f"{_WAITED} (the same bits, and each save is waited for)")
    again = _again(config)
    if again is not None and there.fits(again):
        found.append(f"{_AGAIN} (the same bits, slower)")
    if not there.host and optim.kept(config.optim):
        away = config.optim.model_copy(update={"offload": True})
        if there.fits(config.model_copy(update={"optim": away})):
            found.append(f"{_AWAY} (the same bits, slower)")
    if there.sharded or there.host or there.staged:
        return found
    if (spread := there.over(config, visible)) is not None:
        # At FP16, whose loss scaler is for whole models, the bits would be others.
        same = " (the same bits)" * config.lockstep
        found.append(spread + (" PRECISION=bf16" if there.half else same))
    return found


def _again(config: Config) -> Config | None:
    """The experiment with activations that are computed again; None where they cannot be."""
    if config.model.compile or config.model.activation_checkpointing:
        return None
    model = config.model.model_copy(update={"activation_checkpointing": True})
    return config.model_copy(update={"model": model})


def _is_shardable(config: Config, classes: int, shape: Shape) -> bool:
    with suppress(UsageError):
        check_shardable(config, "no")
        with alone():
            model = blank(config.model, classes, shape)
        blocks.check(model, list(blocks.units(model)))
        return True
    return False
