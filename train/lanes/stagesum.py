"""The sum over lanes on one stage of a pipeline, which runs all lanes."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.lanes.buffers import Buffers
from train.lanes.counter import Counter, tree
from train.lanes.stages import is_elsewhere
from train.lanes.state import laid_as
from train.lanes.traits import Traits


class StageSum:
    """The tree of `LaneTree` over what this stage has; nothing of it is exchanged.

    A lane's forward pass comes before the backward pass of an earlier one: `begin` and `leave`
    stand around the one, `forget` and `gather` around the other, each in the order of lanes.

    Args:
        last: the number of the last stage, whose reports are everybody's.
    """

    scale = 1.0

    def __init__(self, model: nn.Module, last: int, traits: Traits) -> None:
        self.buffers = Buffers(model, traits.moving)
        self.exchanged: list[int] = []
        self._trained = [p for p in model.parameters() if p.requires_grad and not is_elsewhere(p)]
        self._last = last
        self._gradients = Counter()
        self._averages: list[list[Tensor]] = []
        self._reports: list[Tensor] = []

    def begin(self) -> None:
        """Start a lane from the step's first buffers."""
        self.buffers.begin(apart=True)

    def leave(self, share: float, report: Tensor) -> None:
        """After a lane's forward pass: its share of the batch, and what the last stage reports."""
        averages = self.buffers.averages
        self._averages.append(list(torch._foreach_mul(averages, share)) if averages else [])
        self._reports.append(report)
        self.buffers.end(share)

    def forget(self) -> None:
        """Before a lane's backward pass: begin without gradients."""
        for parameter in self._trained:
            parameter.grad = None

    def gather(self) -> None:
        """After a lane's backward pass: put its gradients on the tree."""
        node = []
        for parameter in self._trained:
            gradient = parameter.grad
            node.append(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None
        self._gradients.add(node)

    def total(self) -> Tensor:
        """Give the parameters their gradients; returns the sum of the last stage's reports."""
        sums = self._gradients.total()
        for parameter, gradient in zip(self._trained, sums, strict=True):
            parameter.grad = laid_as(gradient, parameter)
        self.buffers.settle([tree(lanes) for lanes in zip(*self._averages, strict=True)], 1)
        report = tree(self._reports)
        dist.broadcast(report, self._last)
        self._averages, self._reports = [], []
        return report

    def undo(self) -> bool:
        """Nothing: what a process holds is no whole model."""
        return False

    def close(self) -> None:
        """Nothing to do."""
