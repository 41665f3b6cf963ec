"""What each process of a training needs of memory, whichever way it shares the model."""

from host.stages import Stages
from train.config import Config
from train.process import stagewise
from train.process.memory import Need, Shape, of_shapes


def needs(
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
