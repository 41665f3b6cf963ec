"""The sum over lanes of sharded weights that is left to FSDP and the network library."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.lanes.allreduce import share_state
from train.lanes.sharding import Sharding
from train.lanes.state import Kept, slots


class ShardReduce:
    """Each process adds its lanes' gradients up, and FSDP sums them once a step.

    Until the last lane a process holds the gradients of all weights, not of its part alone.

    Args:
        lanes: how many this process runs.
        images: gives images of a lane, for lanes without any.
    """

    scale = 1.0

    def __init__(
        self,
        model: nn.Module,
        sharding: Sharding,
        lanes: int,
        images: Callable[[], Tensor],
    ) -> None:
        self.model, self._lanes, self._images = model, lanes, images
        self.exchanged: list[int] = []
        self._trained = sharding.trained()
        self._state = [slot for slot in slots(model) if not slot.is_parameter]
        self._done = 0
        self._report: Tensor | None = None

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:  # noqa: ARG002  (the protocol's)
        """Add to the gradients of the step's earlier lanes."""
        self._done += 1
        model: Any = self.model
        # In the last one also where it is empty: its sums are everybody's.
        model.set_requires_gradient_sync(self._done == self._lanes)
        return nullcontext()

    def add(self, share: float, report: Tensor) -> None:
        """Sum what the lanes of this process report."""
        if not share:
            self._accompany()
        self._report = report if self._report is None else self._report + report

    def _accompany(self) -> None:
        """Gather and sum with the others, whose lanes are not empty; nothing is left of it."""
        before = Kept(self._state)
        (self.model(self._images()).sum() * 0).backward()
        before.put_back()

    def total(self) -> Tensor:
        """Give the optimizer's shards their gradients; returns the sum of the reports."""
        assert self._report is not None
        report, self._report, self._done = self._report, None, 0
        for parameter, shard in self._trained:
            gradient: Any = parameter.grad
            shard.grad = torch.zeros_like(shard) if gradient is None else gradient.to_local()
            parameter.grad = None
        dist.all_reduce(report)
        share_state(self._state)
        return report

    def undo(self) -> bool:
        """Nothing: what a process holds is no whole model."""
        return False

    def close(self) -> None:
        """Nothing to do."""
