"""The sum over lanes on one stage of a pipeline, which runs all lanes, or those of its copy."""

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.lanes.buffers import Buffers
from train.lanes.counter import Counter
from train.lanes.exchange import BUCKET, Exchange, split
from train.lanes.joining import plan
from train.lanes.stages import is_elsewhere
from train.lanes.state import laid_as
from train.lanes.team import Team
from train.lanes.traits import Traits


class StageSum:
    """The tree of `LaneTree` over what this stage has, which copies of the model exchange.

    A lane's forward pass comes before the backward pass of an earlier one: `begin` and `leave`
    stand around the one, `forget` and `gather` around the other, each in the order of lanes.

    Args:
        team: the processes that have this stage, one for each copy of the model.
        shares: which of a step's lanes each copy runs: neighbours, and of all a power of two.
    """

    scale = 1.0

    def __init__(
        self,
        model: nn.Module,
        team: Team,
        shares: Sequence[range],
        traits: Traits,
        *,
        device: torch.device,
    ) -> None:
        self.buffers = Buffers(model, traits.moving)
        self._team, self._last = team, len(team.every) - 1
        self._trained = [p for p in model.parameters() if p.requires_grad and not is_elsewhere(p)]
        # A leaf is a list: a gradient for each parameter, then the averages, then the report.
        self._sums = Counter(shares[team.place].start)
        # What forward passes have left, of lanes whose backward pass is still to come.
        self._left: deque[list[Tensor]] = deque()
        self._exchange: Exchange | None = None
        self._buckets: list[list[int]] = []
        if team.size > 1:
            report = torch.zeros(2, device=device)
            like = [*self._trained, *self.buffers.averages, report]
            self._buckets = split(BUCKET, like, len(self._trained))
            held = [[like[n] for n in bucket] for bucket in self._buckets]
            self._exchange = Exchange(held, plan(shares, team.place), team)
        self.exchanged = [
            sum(tensor.nbytes for tensor in bucket[0])
            for bucket in (self._exchange.views if self._exchange else [])
        ]

    def begin(self) -> None:
        """Start a lane from the step's first buffers."""
        self.buffers.begin(apart=True)

    def leave(self, share: float, report: Tensor) -> None:
        """After a lane's forward pass: its share of the batch, and what the last stage reports."""
        averages = self.buffers.averages
        self._left.append([*torch._foreach_mul(averages, share), report] if averages else [report])
        self.buffers.end(share)

    def forget(self) -> None:
        """Before a lane's backward pass: begin without gradients."""
        for parameter in self._trained:
            parameter.grad = None

    def gather(self) -> None:
        """After a lane's backward pass: put its gradients on the tree."""
        leaf = []
        for parameter in self._trained:
            gradient = parameter.grad
            leaf.append(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None
        self._sums.add([*leaf, *self._left.popleft()])

    def total(self) -> Tensor:
        """Give the parameters their gradients; returns the sum of the last stage's reports."""
        group = self._exchange.group if self._exchange else None
        *sums, report = self._everywhere() if self._exchange else self._sums.total()
        for parameter, gradient in zip(self._trained, sums, strict=False):
            parameter.grad = laid_as(gradient, parameter)
        means = sums[len(self._trained) :]
        self.buffers.settle(means, self._team.size, first=self._team.ranks[0], group=group)
        report = report.clone()  # where copies exchange it, the next step's comes there
        dist.broadcast(report, self._last)  # of the first copy; all copies' have the same
        return report

    def _everywhere(self) -> list[Tensor]:
        """The sum over all copies' lanes, on each."""
        assert self._exchange is not None
        subtrees = self._sums.sums()
        for number, bucket in enumerate(self._buckets):
            for places, sums in zip(self._exchange.views[number], subtrees, strict=True):
                torch._foreach_copy_(places, [sums[n] for n in bucket])
            self._exchange.start(number)
        self._exchange.finish()
        return self._exchange.sums()

    def undo(self) -> bool:
        """Nothing: what a process holds is no whole model."""
        return False

    def close(self) -> None:
        """End the exchange between copies."""
        if self._exchange is not None:
            self._exchange.close()
