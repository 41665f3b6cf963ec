"""The sum over lanes whose bits do not depend on how many processes share them, nor how.

`LaneTree` sums in a balanced binary tree over lane numbers: inside a process as a binary counter of
partial sums, across processes as `joining` plans it, where each exchange adds two neighbouring
subtrees of one size (a + b and b + a are the same bits).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from host.errors import UsageError
from train.lanes.buffers import Buffers
from train.lanes.exchange import BUCKET, Exchange, split
from train.lanes.joining import Node, above, is_right, plan
from train.lanes.state import laid_as
from train.lanes.team import Team
from train.lanes.traits import USUAL, Traits


class LaneTree:
    """Every process ends with the bits of one process that ran all lanes itself.

    Two neighbouring lanes are added by autograd itself, which adds to the gradients it finds. A
    bucket of gradients is exchanged as soon as the last lane's backward pass has produced it.

    Args:
        shares: which of a step's lanes each process runs: neighbours, and of all a power of two.
        traits: what the model does that others do not.
        team: who the processes are; None: all.
        bucket: bytes of gradients that are exchanged at once.

    Attributes:
        exchanged: bytes of each bucket, in the order in which they go.
    """

    scale = 1.0

    def __init__(
        self,
        model: nn.Module,
        rank: int,
        shares: Sequence[range],
        traits: Traits = USUAL,
        *,
        team: Team | None = None,
        bucket: int = BUCKET,
    ) -> None:
        self._team = team
        self._rank, self._world = rank, len(shares)
        # A gradient that comes in parts would be added to the other lane's part by part.
        self._pairs = not traits.late
        # Of the first lane of a pair: its averages and report, and its gradients' versions.
        self._first: tuple[list[Tensor], list[tuple[Tensor, int]]] | None = None
        # Backward passes produce gradients from the last layer to the first, more or less; what
        # comes in parts is complete when all is done.
        trained = [(name, p) for name, p in reversed(list(model.named_parameters()))]
        trained = [(name, p) for name, p in trained if p.requires_grad]
        early = [p for name, p in trained if name not in traits.late]
        self.parameters = early + [p for name, p in trained if name in traits.late]
        self.buffers = Buffers(model, traits.moving)
        # The binary counter: subtrees that nothing is there to join, in order, and their sums. A
        # sum is a list: a gradient for each parameter, then the averages, then the report.
        self._partial: list[tuple[Node, list[Tensor]]] = []
        self._last = False
        self._started = 0
        self._exchange: Exchange | None = None
        report = torch.zeros(2, device=self.parameters[0].device)
        like = [*self.parameters, *self.buffers.averages, report]
        self._buckets = split(bucket, like, len(early))
        self.exchanged = [sum(like[n].nbytes for n in numbers) for numbers in self._buckets]
        if self._world > 1:
            for place, numbers in enumerate(self._buckets):
                for number in (n for n in numbers if n < len(early)):
                    hook = partial(self._ready, place, number)
                    self.parameters[number].register_post_accumulate_grad_hook(hook)
        self._like = like
        self.share(shares)
        self._early = [set(bucket) for bucket in self._buckets if bucket[0] < len(early)]
        self._missing = [set(bucket) for bucket in self._early]

    def share(self, shares: Sequence[range]) -> None:
        """Share the lanes so from the next step on. All processes call this together."""
        self._lanes = shares[self._rank]
        self._lane = self._lanes.start
        if self._world > 1:
            self.close()
            self._exchange = None  # or there would be memory for both
            held = [[self._like[n] for n in bucket] for bucket in self._buckets]
            self._exchange = Exchange(held, plan(shares, self._rank), self._team)

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:
        """Start the lane from the step's first buffers and from no gradient."""
        self.buffers.begin()
        if self._first is None:
            for parameter in self.parameters:
                parameter.grad = None
        self._last = sync and self._exchange is not None
        return nullcontext()

    def _ready(self, bucket: int, number: int, _parameter: Tensor) -> None:
        """A gradient is complete; after the last lane's, a whole bucket may go."""
        if not self._last:
            return
        if number not in self._missing[bucket]:
            raise _in_parts()
        self._missing[bucket].remove(number)
        # In order, whichever is complete first: the processes must exchange the same.
        while self._started < len(self._missing) and not self._missing[self._started]:
            self._start([p.grad for p in self.parameters])

    def _start(self, leaf: Sequence[Tensor | None]) -> None:
        """Sum the next bucket's part of `leaf` with what the counter holds, and exchange it."""
        numbers = self._buckets[self._started]
        sums = [tensor for n in numbers if (tensor := leaf[n]) is not None]
        assert len(sums) == len(numbers)
        assert self._exchange is not None
        *before, places = self._exchange.views[self._started]
        apart, joined = self._partial[: len(before)], self._partial[len(before) :]
        for (_, earlier), other_places in zip(apart, before, strict=True):
            torch._foreach_copy_(other_places, [earlier[n] for n in numbers])
        if not joined:
            torch._foreach_copy_(places, sums)
        for number, (_, earlier) in reversed(list(enumerate(joined))):
            mine = [earlier[n] for n in numbers]
            if number == 0:  # the last join writes where the exchange reads
                for one, other, place in zip(mine, sums, places, strict=True):
                    torch.add(one, other, out=place)
            else:
                torch._foreach_add_(mine, sums)
                sums = mine
        self._exchange.start(self._started)
        self._started += 1

    def add(self, share: float, report: Tensor) -> None:
        """Put the lane's leaf on the tree, and join equal subtrees."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        averages = self.buffers.averages
        rest = [*torch._foreach_mul(averages, share), report] if averages else [report]
        self.buffers.end(share)
        lane, self._lane = self._lane, self._lane + 1
        if self._pairs and self._first is None and lane % 2 == 0 and lane + 1 in self._lanes:
            self._first = rest, [(g, g._version) for g in map(_apart, self.parameters)]
            return
        node: Node = 0, lane
        if self._first is not None:
            node = above(node)
            before, earlier_ones = self._first
            self._first = None
            torch._foreach_add_(rest, before)
            # Where this lane gave nothing: a leaf of zeros, as between lanes that are further
            # apart. It is not quite nothing: it makes -0.0 a 0.0.
            for gradient, (first, version) in zip(gradients, earlier_ones, strict=True):
                if gradient is not first:
                    raise UsageError(
                        "the model drops or replaces gradients in its forward pass",
                        "leave zero_grad and .grad to the trainer",
                        one_rank=True,
                    )
                if gradient._version == version:
                    gradient.add_(0.0)
                elif gradient._version != version + 1:
                    raise _in_parts()
        sums = [*gradients, *rest]
        if self._last:
            self._start_rest(sums)
            return
        while self._partial and is_right(node) and self._partial[-1][0] == (node[0], node[1] - 1):
            earlier = self._partial.pop()[1]
            torch._foreach_add_(earlier, sums)
            sums, node = earlier, above(node)
        self._partial.append((node, sums))

    def _start_rest(self, leaf: Sequence[Tensor]) -> None:
        """Exchange what no gradient started: unused parameters, and what is no gradient."""
        while self._started < len(self._buckets):
            self._start(leaf)
        self._partial = []

    def total(self) -> Tensor:
        """Join the processes' subtrees, and put the sums where the leaves came from."""
        self._lane = self._lanes.start
        if self._partial:
            *self._partial, (_, sums) = self._partial
            if self._exchange is not None:  # a short batch: nothing was started ahead
                self._start_rest(sums)
        if self._exchange is not None:
            self._exchange.finish()
            sums = self._exchange.sums()
            self._missing = [set(bucket) for bucket in self._early]
            self._started = 0
        *sums, report = sums
        for parameter, gradient in zip(self.parameters, sums, strict=False):
            parameter.grad = laid_as(gradient, parameter)
        self.buffers.settle(sums[len(self.parameters) :], self._world)
        return report.clone()

    def undo(self) -> bool:
        """Have the model as it was before a step that could not be finished."""
        self.buffers.undo()
        return True

    def close(self) -> None:
        """End the exchange between processes."""
        if self._exchange is not None:
            self._exchange.close()


def _apart(parameter: Tensor) -> Tensor:
    """Its gradient, in memory of its own: of parameters that were joined by `cat` they are parts of
    one tensor, and count writes together.
    """
    gradient = parameter.grad
    assert gradient is not None
    if gradient.untyped_storage().nbytes() != gradient.nbytes:
        parameter.grad = gradient = gradient.clone()
    return gradient


def _in_parts() -> UsageError:
    return UsageError(
        "a gradient came in several parts, and had come in one before",
        "checkpoint activations with use_reentrant=False, and leave gradients to the optimizer",
        one_rank=True,
    )
