"""The sum over lanes of a model whose weights are sharded."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from train.lanes.buffers import Buffers
from train.lanes.counter import Counter, tree
from train.lanes.gathering import gather_into
from train.lanes.sharding import Sharding
from train.lanes.traits import Traits


class ShardSum:
    """The tree of `LaneTree`, read from the side: the processes work on neighbouring lanes at the
    same time, process r of W on lanes r, r + W, r + 2W, …

    torch sums each block's gradients over the processes after each backward pass, W lanes at once,
    and leaves each process its shard of that. Those partial sums are joined here, by a binary
    counter. So no process ever holds all of a gradient.

    Args:
        images: gives as many as a lane has, normalised: what a process computes that has none.
    """

    scale = 1.0

    def __init__(
        self,
        model: nn.Module,
        sharding: Sharding,
        traits: Traits,
        images: Callable[[], Tensor],
    ) -> None:
        self.model, self.sharding, self._images = model, sharding, images
        self.buffers = Buffers(model, traits.moving)
        self._trained = sharding.trained()
        self.exchanged: list[int] = []
        self._gradients = Counter()
        # Of each lane its averages and its report, as one tensor for each type among them.
        self._rest: list[list[Tensor]] = []
        like = [*self.buffers.averages, torch.zeros(2, dtype=torch.float32)]
        self._kinds: dict[torch.dtype, list[int]] = {}
        for number, tensor in enumerate(like):
            self._kinds.setdefault(tensor.dtype, []).append(number)

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:  # noqa: ARG002  (the protocol's)
        """Start the lane from the step's first buffers and from no gradient."""
        self.buffers.begin()
        for parameter, _ in self._trained:
            parameter.grad = None
        return nullcontext()

    def add(self, share: float, report: Tensor) -> None:
        """Join the shards of the gradients of these W lanes with those of earlier ones."""
        if not share:
            self._accompany()
        node = []
        for parameter, shard in self._trained:
            gradient: Any = parameter.grad
            node.append(torch.zeros_like(shard) if gradient is None else gradient.to_local())
            parameter.grad = None
        averages = self.buffers.averages
        rest = [*torch._foreach_mul(averages, share), report] if averages else [report]
        flat = (torch.cat([rest[n].reshape(-1) for n in ns]) for ns in self._kinds.values())
        self._rest.append(list(flat))
        self.buffers.end(share)
        self._gradients.add(node)

    def _accompany(self) -> None:
        """Gather and sum with the others, whose lanes are not empty; nothing is left of it."""
        self.sharding.silence.on = True
        try:
            self.model(self._images()).sum().backward()
        finally:
            self.sharding.silence.on = False
        self.buffers.end(0.0)
        self.buffers.begin()

    def total(self) -> Tensor:
        """Give the optimizer's shards their gradients; returns the sum of the reports."""
        sums_of_shards = self._gradients.total()
        for (_, shard), gradient in zip(self._trained, sums_of_shards, strict=True):
            shard.grad = gradient.contiguous()
        like = self.buffers.averages
        shapes = [*(t.shape for t in like), torch.Size([2])]
        sums: dict[int, Tensor] = {}
        for numbers, lanes in zip(self._kinds.values(), zip(*self._rest, strict=True), strict=True):
            flat = tree(self._everywhere(torch.stack(lanes)))
            parts = flat.split([shapes[n].numel() for n in numbers])
            sums |= {n: part.view(shapes[n]) for n, part in zip(numbers, parts, strict=True)}
        self._rest = []
        *means, report = (sums[n] for n in range(len(shapes)))
        self.buffers.settle(means, self.sharding.world)
        return report

    def _everywhere(self, mine: Tensor) -> list[Tensor]:
        """A row for each lane of the step, in the order of lanes, from this process's rows."""
        every = mine.new_empty(self.sharding.world, *mine.shape)
        gather_into(every, mine)
        return [lane for lanes in zip(*every, strict=True) for lane in lanes]

    def undo(self) -> bool:
        """Nothing: what a process holds is no whole model."""
        return False

    def close(self) -> None:
        """Nothing to do."""
