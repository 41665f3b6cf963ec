"""Checkpoints: safetensors and JSON, no pickle; verified before they are read.

step-00000100/
model.safetensors       weights and buffers
optimizer.safetensors   the optimizer's tensors, named <parameter number>.<slot>
…                       the tensors of each other thing with state, by its name
state.json              everything else, the resolved experiment included
SHA256SUMS              a digest of each file; `sha256sum -c SHA256SUMS` checks by hand

Where weights are sharded, each process writes its part: model.0of2.safetensors has the first rows
of each weight, model.1of2.safetensors the others.
"""

import hashlib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from host.errors import CheckpointError, first_line
from train.learn.weights import Versions, contiguous, put
from train.record import documents, rundir
from train.record.facts import Facts
from train.record.stateful import has_nan
from train.record.tensors import Tensors
from train.record.verification import AVERAGE, FIX, MODEL, verified

_TOLD = 2  # lines of what torch says of weights that do not fit: a title, and the first of them


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        model: weights and buffers by name.
        versions: of their layout, by module; None in a checkpoint that does not say them.
        parts: of each thing with state, by its name: tensors and values by their names. As those of
            the model, tensors are read when they are asked for.
        state: step, best and whatever else the run recorded.
    """

    path: Path
    model: Mapping[str, Tensor]
    versions: Versions | None
    parts: dict[str, Mapping[str, Any]]
    state: dict[str, Any]

    @property
    def facts(self) -> Facts:
        """What it is a checkpoint of.

        Raises:
            CheckpointError: it does not say.
        """
        return Facts.read(self.state, str(self.path))

    @property
    def averaged(self) -> bool:
        """Whether it holds the average of the weights, which is what is measured."""
        return AVERAGE in self.parts

    def loaded(self) -> "Checkpoint":
        """The same with the weights that are measured in memory, whatever becomes of its files."""
        parts = {**self.parts}
        if self.averaged:
            parts[AVERAGE] = dict(parts[AVERAGE])
        return replace(self, model=dict(self.model), parts=parts)

    def measured(self) -> "Checkpoint":
        """The same with the average in the weights' place, where it holds one."""
        return replace(self, model=self.parts[AVERAGE]) if self.averaged else self

    def restore_model(self, model: nn.Module) -> None:
        """Put the weights in place.

        Raises:
            CheckpointError: the model is another one, or holds what is no number.
        """
        fix = "use the experiment, and the code of the model, that it was made with"
        learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        for name, here in model.state_dict().items():
            tensor = self.model.get(name, here)
            if here.dtype != tensor.dtype:  # to be loaded, it would be rounded without a word
                problem = f"{name} is {tensor.dtype} there, and {here.dtype} in the model"
                raise CheckpointError(f"{self.path} holds another model: {problem}", fix)
            # What is never used may start so and stay so.
            if name in learned and has_nan(tensor) and not has_nan(here):
                raise CheckpointError(f"{self.path} is damaged: {name} holds NaN", FIX)
        try:
            put(model, self.model, self.versions)
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            rows = [row.strip() for row in str(error).splitlines() if row.strip()]
            more = f" … ({len(rows) - 2} such)" if len(rows) > _TOLD else ""
            problem = " ".join(rows[:_TOLD]) + more
            raise CheckpointError(f"{self.path} holds another model: {problem}", fix) from error


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint directory; its tensors are read from there when they are asked for.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    path = path.resolve()
    said, held = verified(path)
    name = rundir.STATE
    try:
        state = documents.mapping(said)
        plain, slots = _parts(state)
        step = rundir.step_of(path)
        if step not in (None, state.get("step")):
            raise ValueError(f"it says step {state.get('step')}")
        tensors: dict[str, Tensors] = {}
        for what, parts in held.items():
            name = parts[0].name
            if what not in (MODEL, *plain):
                raise ValueError(f"{rundir.STATE} knows nothing of it")
            tensors[what] = Tensors(parts)
        name = held[MODEL][0].name
        versions = tensors[MODEL].versions
        name = rundir.STATE
        for part, listed in slots.items():
            if sorted(tensors.get(part, ())) != listed:
                raise ValueError(f"it lists other tensors of the {part} than there are")
    except OSError as error:  # removed by its run, since it was verified
        raise CheckpointError(
            f"cannot read {path / name}: {error.strerror or first_line(error)}", FIX
        ) from error
    except (ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{path / name} is damaged: {first_line(error)}", FIX) from error
    whole: dict[str, Mapping[str, Any]] = {}
    for part, values in plain.items():
        given: Any = tensors.get(part, {})  # which nobody writes to
        whole[part] = ChainMap(values, given)
    return Checkpoint(path, tensors[MODEL], versions, whole, state)


def _parts(state: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Each part's plain values, and the names of its tensors, taken out of `state`.

    Raises:
        ValueError: they are not said as `write` says them.
    """
    plain, slots = state.pop("parts", None), state.pop("tensors", None)
    if not isinstance(plain, dict) or not isinstance(slots, dict) or plain.keys() != slots.keys():
        raise ValueError("it does not say what has state, as this version writes it")
    if not all(isinstance(values, dict) for values in plain.values()):
        raise ValueError("it gives a part that is no mapping")
    return plain, slots


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the model's tensors, as `tensors_sha256` takes it."""
    return tensors_sha256(contiguous(model.state_dict()))


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over tensors in name order: name, dtype, shape, little-endian bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
