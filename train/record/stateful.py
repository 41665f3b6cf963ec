"""Things with state, as a checkpoint keeps them: by name, tensors and plain values."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer


class Stateful(Protocol):
    """Anything whose state a resumed run needs; torch's GradScaler is one as it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Its state by name, one level deep: tensors, and values that JSON can hold."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take such a state."""


def split(name: str, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of the state of the part `name`, and its other values.

    Raises:
        ValueError: a value would not be the same when it is read back from JSON, which knows
            neither tuples nor numbers as keys; whoever wrote the part has to mend it.
    """
    tensors = {slot: value for slot, value in state.items() if isinstance(value, Tensor)}
    plain = {slot: value for slot, value in state.items() if slot not in tensors}
    for slot, value in plain.items():
        try:
            same = repr(json.loads(json.dumps(value))) == repr(value)
        except TypeError:
            same = False
        if not same:
            raise ValueError(f"the state of {name} has a {slot} that JSON cannot hold: {value!r}")
    return tensors, plain


class OptimizerState:
    """An optimizer's state in that form: `<parameter number>.<slot>`.

    The groups' settings come from the experiment, which is checked to be the same.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Its slots."""
        return {
            f"{number}.{slot}": value
            for number, values in self.optimizer.state_dict()["state"].items()
            for slot, value in values.items()
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take its slots."""
        slots: dict[int, dict[str, Any]] = {}
        for name, value in state_dict.items():
            number, slot = name.split(".", 1)
            slots.setdefault(int(number), {})[slot] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
