"""The sum over lanes: gradients, batch-norm statistics and what the lanes report.

`LaneTree` sums in a balanced binary tree over lane numbers, so that its bits do not depend on
how many processes share the lanes: inside a process as a binary counter of partial sums, across
processes by recursive doubling, where each exchange adds two neighbouring subtrees of one size
(a + b and b + a are the same bits). `AllReduce` leaves the sum to DDP and the network library.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Reducer(Protocol):
    """Sums over all lanes of a step, whichever process ran them.

    Attributes:
        scale: factor to give each lane's loss, so that gradients come out as sums.
    """

    scale: float

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:
        """Around one lane's passes; `sync` on the last lane of a full batch."""

    def add(self, share: float, report: Tensor) -> None:
        """After a lane: its share of the batch, and a float32 vector to sum."""

    def total(self) -> Tensor:
        """After the last lane: gradients hold their sums; returns the sum of the reports."""

    def sync_buffers(self) -> None:
        """Make buffers equal on all processes, before they are read or saved."""


class LaneTree:
    """Every process ends with the bits of one process that ran all lanes itself."""

    scale = 1.0

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # Batch norm's; whatever else a model keeps in buffers stays as it is.
        named = [(name.rsplit(".", 1)[-1], buffer) for name, buffer in model.named_buffers()]
        self.averages = [b for name, b in named if name in ("running_mean", "running_var")]
        self.counters = [b for name, b in named if name == "num_batches_tracked"]
        self._before: list[Tensor] = []
        # The binary counter: (height, sum of 2^height neighbouring lanes), heights falling.
        self._partial: list[tuple[int, Tensor]] = []

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:  # noqa: ARG002  (the protocol's)
        """Start the lane from the step's first buffers and from no gradient."""
        if not self._before:
            self._before = [b.clone() for b in (*self.averages, *self.counters)]
        else:
            torch._foreach_copy_([*self.averages, *self.counters], self._before)
        for parameter in self.parameters:
            parameter.grad = None
        return nullcontext()

    def add(self, share: float, report: Tensor) -> None:
        """Put the lane's leaf on the tree, and join equal subtrees."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        parts += [b * share for b in self.averages]
        node, height = torch.cat([t.reshape(-1) for t in (*parts, report)]), 0
        while self._partial and self._partial[-1][0] == height:
            node = self._partial.pop()[1].add_(node)
            height += 1
        self._partial.append((height, node))

    def total(self) -> Tensor:
        """Join the processes' subtrees, and put the sums where the leaves came from."""
        [(_, node)] = self._partial
        self._partial = []
        distance = 1
        while distance < self.world:
            node = node + self._exchange(node, self.rank ^ distance)
            distance *= 2
        place = 0
        for parameter in self.parameters:
            parameter.grad = node[place : place + parameter.numel()].view_as(parameter)
            place += parameter.numel()
        for average in self.averages:
            average.copy_(node[place : place + average.numel()].view_as(average))
            place += average.numel()
        for counter, before in zip(self.counters, self._before[len(self.averages) :], strict=True):
            counter.copy_(before + 1)
        self._before = []
        return node[place:]

    def _exchange(self, node: Tensor, peer: int) -> Tensor:
        other = torch.empty_like(node)
        both = [dist.P2POp(dist.isend, node, peer), dist.P2POp(dist.irecv, other, peer)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return other

    def sync_buffers(self) -> None:
        """Nothing to do: the tree left the same buffers everywhere."""


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
