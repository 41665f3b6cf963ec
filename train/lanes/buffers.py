"""What the forward pass itself changes in a model, so that the number of lanes a process runs does
not show: each lane starts from the step's first state, and one state comes out for all.

Batch norm's averages become their mean over all lanes. Whatever else moves (spectral norm's
vectors, averages of weights, queues, counters) is what the first lane left.
"""

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from host.errors import UsageError
from train.lanes.stages import is_elsewhere
from train.lanes.state import Kept, Slot, as_bytes, from_bytes, slots


class Buffers:
    """The state of a model beside what gradients move.

    Args:
        moving: names of what the forward pass is known to change.
    """

    def __init__(self, model: nn.Module, moving: Collection[str] = ()) -> None:
        # Of a model in stages, this one's.
        every = [slot for slot in slots(model) if not is_elsewhere(slot.first)]
        self._names = moving
        # Of layers that are not torch's the name says less than what they were seen to do.
        self._averages = [
            s
            for s in every
            if is_average(s) and (isinstance(s.owner, _NormBase) or s.name in moving)
        ]
        self._counters = [s for s in every if is_counter(s)]
        known = {s.name for s in (*self._averages, *self._counters)}
        self._moving = [s for s in every if s.name in moving and s.name not in known]
        known |= {s.name for s in self._moving}
        self._still = [s for s in every if s.name not in known]
        # As they were at the start of the step.
        self._before = Kept([*self._averages, *self._counters, *self._moving])
        self._within = False
        self._first: list[Tensor] = []
        self._marks: list[tuple[int, int]] = []

    @property
    def averages(self) -> list[Tensor]:
        """Batch norm's averages, as the lane left them."""
        return [slot.first if slot.now is None else slot.now for slot in self._averages]

    def begin(self, *, apart: bool = False) -> None:
        """Start a lane from the step's first state.

        Args:
            apart: in memory of its own, for an earlier lane's backward pass is still to come, and
                sees whether what it needs was written to.
        """
        if self._within and apart:
            self._before.renew()
        elif self._within:
            self._before.put_back()
        else:
            self._before.keep()
            if apart:
                self._before.renew()
        self._within = True
        self._marks = [(slot.first._version, slot.first.data_ptr()) for slot in self._still]

    def end(self, share: float) -> None:
        """After a lane.

        Args:
            share: its part of the batch; 0 where it had no samples.

        Raises:
            UsageError: it changed what no earlier one has.
        """
        for slot, mark in zip(self._still, self._marks, strict=True):
            first = slot.first
            if slot.now is not first or (first._version, first.data_ptr()) != mark:
                raise UsageError(
                    f"the model begins to change its own {slot.name} in the middle of a run: it did"
                    " not where it was tried",
                    "have it change in each forward pass, if by nothing (add_(0))",
                    one_rank=True,
                )
        if share and not self._first:
            self._first = Kept(self._moving).values

    def settle(
        self,
        means: list[Tensor],
        world: int,
        *,
        first: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """After the step's lanes: have the state that comes out of them, the same everywhere.

        Args:
            means: of the averages over all lanes.
            world: how many processes have this state; the first one has run the first lane.
            first: its number.
            group: of these; None: of all.
        """
        before = self._before.values
        size = len(self._averages)
        counts = before[size : size + len(self._counters)]
        shared = self._first
        if self._moving and world > 1:
            shared = self._shared(first, group)
        after = [*means, *(torch._foreach_add(counts, 1) if counts else []), *shared]
        # Of a norm layer that is frozen the mean is what it was, but for rounding.
        norms = [*self._averages, *self._counters]
        frozen = [not slot.owner.training and slot.name not in self._names for slot in norms]
        for n, stays in enumerate(frozen):
            if stays:
                after[n] = before[n]
        self._before.put(after)
        self._within, self._first = False, []

    def undo(self) -> None:
        """Have the state that the step began with."""
        if self._within:
            self._before.put_back()
        self._within, self._first = False, []

    def _shared(self, first: int, group: dist.ProcessGroup | None) -> list[Tensor]:
        """What the first lane left, on every process."""
        like = [slot.first for slot in self._moving]
        # A process whose lanes were all empty has none of its own.
        mine = self._first or [torch.zeros_like(tensor) for tensor in like]
        flat = torch.cat([as_bytes(tensor.to(like[0].device)) for tensor in mine])
        dist.broadcast(flat, src=first, group=group)
        return from_bytes(flat, like)


def is_average(slot: Slot) -> bool:
    """Whether it is one of batch norm's averages."""
    return slot.leaf in ("running_mean", "running_var") and not slot.is_parameter


def is_counter(slot: Slot) -> bool:
    """Whether it counts a norm layer's batches."""
    return slot.leaf == "num_batches_tracked" and isinstance(slot.owner, _NormBase)
