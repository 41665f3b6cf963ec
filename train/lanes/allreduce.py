"""The sum over lanes that is left to DDP and the network library."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train.lanes.state import Slot, as_bytes, from_bytes, slots
from train.lanes.traits import USUAL, Traits


class AllReduce:
    """DDP's own averaging of gradients, overlapped with the backward pass.

    Args:
        traits: what the model does that others do not.
    """

    def __init__(self, model: nn.Module, world: int, traits: Traits = USUAL) -> None:
        self.model, self.world = model, world
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        inner = model
        if isinstance(model, DistributedDataParallel):
            inner = model.module
            # It would do so before a pass, and in a short batch some processes have none.
            model.broadcast_buffers = False
        # What passes change otherwise on each process.
        every = slots(inner)
        self._shared = [s for s in every if not s.is_parameter or s.name in traits.moving]
        # DDP divides by the number of processes.
        self.scale = float(world)
        self.exchanged: list[int] = []
        self._report: Tensor | None = None
        self._first, self._synced = True, False

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:
        """Add to the gradients of the step's earlier lanes."""
        if self._first:
            self.model.zero_grad(set_to_none=True)
            self._first = False
        self._synced = sync
        if isinstance(self.model, DistributedDataParallel) and not sync:
            return self.model.no_sync()
        return nullcontext()

    def add(self, share: float, report: Tensor) -> None:  # noqa: ARG002  (the protocol's)
        """Sum what the lanes of this process report."""
        self._report = report if self._report is None else self._report + report

    def total(self) -> Tensor:
        """Sum the reports over all processes."""
        assert self._report is not None
        report, self._report, self._first = self._report, None, True
        if self.world > 1:
            dist.all_reduce(report)
            if not self._synced:  # a short batch: some processes may have had nothing to do
                for parameter in self.parameters:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.world
            share_state(self._shared)
        return report

    def undo(self) -> bool:
        """Nothing: a pass has changed the model's buffers, and nobody knows what they were."""
        return False

    def close(self) -> None:
        """Nothing to do."""


def share_state(state: Sequence[Slot]) -> None:
    """Have the main process's values of what passes change otherwise on each process."""
    places = (slot.first if slot.now is None else slot.now for slot in state)
    shared = [tensor.detach() for tensor in places]
    if shared:
        flat = torch.cat([as_bytes(tensor) for tensor in shared])
        dist.broadcast(flat, src=0)
        torch._foreach_copy_(shared, from_bytes(flat, shared))
