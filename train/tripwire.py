"""Finds a process whose weights are not those of the others any more: bad memory, a bad GPU.

Every process is meant to hold the same bits after each update. One that strays would go on
training something else unnoticed, and spoil all that is saved.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from train.errors import HostError
from train.runtime import Runtime


class Tripwire:
    """Compares weights and optimizer state across processes.

    Args:
        buffers: whether the model's buffers are meant to be equal as well (under DDP, batch
            norm's are each process's own between synchronisations).
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, runtime: Runtime, *, buffers: bool
    ) -> None:
        self.model, self.optimizer, self.runtime, self.buffers = model, optimizer, runtime, buffers

    def check(self, step: int) -> None:
        """Compare what the processes hold after `step` updates. All must call this together.

        Raises:
            HostError: on every process, naming those that differ and the first tensor that does.
        """
        names, mine = self.digests()
        every = [torch.empty_like(mine) for _ in range(self.runtime.world)]
        dist.all_gather(every, mine, group=self.runtime.control)
        rows = [tuple(row.tolist()) for row in every]
        usual, votes = Counter(rows).most_common(1)[0]
        astray = [rank for rank, row in enumerate(rows) if row != usual]
        if not astray:
            return
        tensor = next(
            name for name, *values in zip(names, *rows, strict=True) if len(set(values)) > 1
        )
        # Without a majority nobody can say who is right.
        right = "the others" if 2 * votes > self.runtime.world else f"process {rows.index(usual)}"
        who = f"process {' and '.join(map(str, astray))} strayed from {right}"
        raise HostError(
            f"{who} by step {step}, first in {tensor}: their bits should be equal",
            "suspect that process's memory or GPU; add --resume to go on from the last checkpoint,"
            " on which all agreed",
        )

    def digests(self) -> tuple[list[str], Tensor]:
        """A name and an int64 digest for each tensor; one flipped bit changes a digest."""
        tensors: dict[str, Tensor] = dict(self.model.named_parameters())
        if self.buffers:
            tensors |= dict(self.model.named_buffers())
        names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        for parameter, slots in self.optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"{names[parameter]}'s {slot}"] = value
        # Sorted: an optimizer's state stands in the order in which it was made or loaded.
        tensors = {name: tensors[name] for name in sorted(tensors) if tensors[name].numel()}
        # The exclusive or of all elements' bits.
        found = [torch.hash_tensor(t.detach()).view(torch.int64) for t in tensors.values()]
        return list(tensors), torch.stack([f.to(self.runtime.device) for f in found]).cpu()
