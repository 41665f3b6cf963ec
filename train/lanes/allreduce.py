"""The sum over lanes that is left to DDP and the network library."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class AllReduce:
    """DDP's own averaging of gradients, overlapped with the backward pass."""

    def __init__(self, model: nn.Module, world: int) -> None:
        self.model, self.world = model, world
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # DDP divides by the number of processes.
        self.scale = float(world)
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
        return report

    def sync_buffers(self) -> None:
        """Take the main process's buffers, which DDP hands out before each synchronised pass."""
        if self.world > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)

    def close(self) -> None:
        """Nothing to do."""
