"""The processes that sum their gradients: all, or those with the same stage of a model."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Team:
    """Which of all processes sum their gradients with this one.

    Attributes:
        every: the processes of each team, as many in each; of a model in stages a team for each
            stage, in their order.
        number: which team this process is in; of a model in stages, its stage.
        place: which of its team it is; of a model in stages, which copy of the model it works on.
        patience: how long one waits for another.
    """

    every: list[list[int]]
    number: int
    place: int
    patience: timedelta

    @property
    def ranks(self) -> list[int]:
        """The processes of this one's team."""
        return self.every[self.number]

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def group(self, **how: Any) -> dist.ProcessGroup:
        """A new process group of the team. All processes of all teams ask together."""
        how = {"timeout": self.patience, **how}
        groups: list[Any] = [dist.new_group(ranks, **how) for ranks in self.every]
        found: dist.ProcessGroup = groups[self.number]
        return found


def teams(world: int, stages: int, rank: int, patience: timedelta) -> Team:
    """The team of process `rank`: a copy of the model is on `stages` processes, neighbours."""
    every = [list(range(stage, world, stages)) for stage in range(stages)]
    return Team(every, rank % stages, rank // stages, patience)
