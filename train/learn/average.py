"""The exponential moving average of a model's weights (EMA), often better than the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from host.errors import UsageError
from train.lanes.sharding import Sharding
from train.lanes.stages import is_elsewhere
from train.lanes.staging import Staging
from train.lanes.state import Kept, slots
from train.learn.weights import contiguous, put


class Average:
    """The average of a model's parameters and buffers over steps; integers are taken as they are.

    Args:
        decay: what is left of the average in a step. In the first steps it is less,
            (1 + step) / (10 + step), or the initial weights would stay for long.

    Raises:
        UsageError: weights have too few digits to be averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self._now = Kept(slots(model))
        for slot in self._now.slots:
            kind = slot.first.dtype
            if kind.is_floating_point and kind.itemsize < torch.float32.itemsize:
                raise UsageError(
                    f"optim.ema: {slot.name} is {kind}, which has too few digits for an average",
                    "keep the weights in float32 (PRECISION=bf16 computes in less), or drop it",
                )
        self._values = self._now.values
        self._now.values = []

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` completed updates."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        moved: tuple[list[Tensor], list[Tensor]] = [], []
        for slot, value in zip(self._now.slots, self._values, strict=True):
            now = slot.first if slot.now is None else slot.now
            if value.is_floating_point() or value.is_complex():
                moved[0].append(value)
                moved[1].append(now)
            else:
                value.copy_(now)
        if moved[0]:  # a stage may have nothing of that kind
            torch._foreach_lerp_(*moved, weight)

    def shard(self, sharding: Sharding | Staging) -> None:
        """Keep this process's part of it, of a model that is spread by now."""
        pairs = zip(self._now.slots, self._values, strict=True)
        parts = {slot.name: sharding.mine(slot, value) for slot, value in pairs}
        here = [slot for slot in slots(self.model) if not is_elsewhere(slot.first)]
        self._values = [parts[slot.name] for slot in here]
        self._now = Kept(here)
        self._now.values = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the average in the model; afterwards its weights as they were."""
        self._now.keep()
        self._now.put(self._values)
        try:
            yield
        finally:
            self._now.put_back()
            self._now.values = []  # as large as the model

    def tensors(self) -> dict[str, Tensor]:
        """The average, by name."""
        pairs = zip(self._now.slots, self._values, strict=True)
        return {slot.name: value for slot, value in pairs}

    def state_dict(self) -> dict[str, Any]:
        """The average, as the model's own state dict has its weights."""
        with self.in_place():
            return {**contiguous(self.model.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take such an average.

        Raises:
            RuntimeError: it is of another model.
        """
        now = Kept(self._now.slots)
        try:
            put(self.model, state_dict, None)
            for value, found in zip(self._values, Kept(self._now.slots).values, strict=True):
                value.copy_(found)
        finally:
            now.put_back()
