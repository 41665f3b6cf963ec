"""Things with state, as a checkpoint keeps them: by name, tensors and plain values."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from train.lanes.state import laid_as


class Stateful(Protocol):
    """Anything whose state a resumed run needs."""

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


def has_nan(tensor: Tensor) -> bool:
    """Whether any of its values is no number."""
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # no kernels for 8-bit floats
    return bool(wide.isnan().any())


class OptimizerState:
    """An optimizer's state in that form: `<parameter number>.<slot>`, and `group<number>.step`
    where a group of parameters counts its steps.

    The groups' settings come from the experiment, which is checked to be the same.

    Args:
        slots: what the optimizer keeps of each parameter that it has moved: one of these.
    """

    def __init__(self, optimizer: Optimizer, slots: Sequence[Collection[str]]) -> None:
        self.optimizer, self.slots = optimizer, [set(each) for each in slots]

    def state_dict(self) -> dict[str, Any]:
        """Its slots."""
        state = self.optimizer.state_dict()
        counts = enumerate(state["param_groups"])
        return {
            f"{number}.{slot}": value
            for number, values in state["state"].items()
            for slot, value in values.items()
            # Others follow from the parameter.
            if isinstance(value, Tensor)
        } | {f"group{n}.step": group["step"] for n, group in counts if "step" in group}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take its slots.

        Raises:
            ValueError: they are not those of this optimizer and its parameters.
        """
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        groups = self.optimizer.state_dict()["param_groups"]
        for name, value in state_dict.items():
            place, _, slot = name.partition(".")
            if place.startswith("group") and slot == "step":
                self._count(groups, name, value)
                continue
            if not (place.isdecimal() and int(place) < len(parameters)):
                raise ValueError(f"{name} belongs to no parameter")
            parameter = parameters[int(place)]
            if not isinstance(value, Tensor) or value.shape not in (parameter.shape, ()):
                raise ValueError(f"{name} is not of its parameter's shape")
            if has_nan(value):
                raise ValueError(f"{name} holds NaN")
            slots.setdefault(int(place), {})[slot] = (
                laid_as(value, parameter) if value.shape == parameter.shape else value
            )
        if any("exp_avg" in each and "step" not in each for each in self.slots):
            counts = (f"group{number}.step" for number in range(len(groups)))
            lacking = next((name for name in counts if slots and name not in state_dict), None)
            if lacking is not None:
                raise ValueError(f"{lacking} is missing")
        for number, values in slots.items():
            if values.keys() not in self.slots:
                has, *each = (", ".join(sorted(names)) for names in (values, *self.slots))
                raise ValueError(
                    f"parameter {number} has {has}, and should have {' or '.join(each)}"
                )
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})

    def _count(self, groups: list[dict[str, Any]], name: str, value: Any) -> None:
        """Take a group's count of steps."""
        number = name.removeprefix("group").partition(".")[0]
        if not (number.isdecimal() and int(number) < len(groups)):
            raise ValueError(f"{name} belongs to no group of parameters")
        if not isinstance(value, Tensor) or value.shape != () or not value.isfinite():
            raise ValueError(f"{name} is no count")
        groups[int(number)]["step"] = value.clone()


class ScalerState:
    """The state of FP16's loss scaler."""

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler

    def state_dict(self) -> dict[str, Any]:
        """Its scale, and how it changes."""
        return self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them.

        Raises:
            ValueError: they are not a scaler's.
        """
        own = self.scaler.state_dict()
        for name in own.keys() | state_dict.keys():
            value: Any = state_dict.get(name)
            if name not in own or type(value) is not type(own[name]) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}")
        self.scaler.load_state_dict(state_dict)
