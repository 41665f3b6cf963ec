"""Whether a training fits into memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from host import limits, meminfo
from host.stages import Stages
from train.config import Config
from train.process.memory import CONTEXT, PROCESS, Need, Shape
from train.process.needs import needs
from train.process.ways import ways

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
    every = needs(
        config,
        classes,
        shape,
        world=world,
        half=half,
        sharded=sharded,
        staged=staged,
        host=not gpus,
    )
    if every is None:
        return None
    need = max(every, key=lambda need: need.training)
    if gpus:
        most: float | None = min(torch.cuda.get_device_properties(n).total_memory for n in gpus)
        place, each, every = "GPU memory", resident + CONTEXT, [need]
        need = replace(need, copy=0)  # in the host's
    else:
        limit = limits.memory()
        most = limit or meminfo.total()
        place = "the cgroup's limit" if limit else "memory"
        each, every = resident + PROCESS, every[:local]
    if most is None:
        return None
    count = len(every)
    start = need.start + (count - 1) * need.others
    training = sum(one.training for one in every) + need.copy
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
