"""What came out of one pass over a model, and the hooks that see it on the way."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from train.lanes.state import as_bytes, slots
from train.lanes.tripwire import digests

Outputs = list[tuple[str, int]]
"""Modules by name, and digests of what they gave, in the order of their calls."""
Digests = dict[str, str | None]
"""Type, shape and SHA-256 of tensors by name; None where there is none."""


@dataclass
class Pass:
    """What came out of a pass.

    Attributes:
        result: the logits, each gradient, and what the pass left where it changed something.
        outputs: of a watched pass.
        firings: each time that a parameter's gradient was added to: its version then.
    """

    result: dict[str, Tensor | None] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=list)
    firings: dict[str, list[int]] = field(default_factory=dict)

    def digest(self) -> str:
        """Sixteen hexadecimal digits of the result's bits."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.result.items()):
            found.update(name.encode())
            if tensor is not None:
                found.update(as_bytes(tensor).cpu().numpy().data)
        return found.hexdigest()[:16]

    def digests(self) -> Digests:
        """Of each tensor of the result its digest, in place of the tensor."""
        return {name: told(tensor) for name, tensor in self.result.items()}


def first_difference(one: Digests, other: Digests) -> str | None:
    """A name whose digests differ; None: there is none."""
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)


def of_model(model: nn.Module) -> Digests:
    """Of its parameters and buffers."""
    return {slot.name: told(slot.now) for slot in slots(model)}


def told(tensor: Tensor | None) -> str | None:
    """A tensor's type, shape and SHA-256."""
    if tensor is None:
        return None
    digest = hashlib.sha256(as_bytes(tensor).cpu().numpy().data).hexdigest()
    return f"{tensor.dtype} {list(tensor.shape)} {digest}"


@contextmanager
def counted(model: nn.Module, found: Pass) -> Iterator[None]:
    """Note how often each gradient is added to."""
    with ExitStack() as stack:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                hook = parameter.register_post_accumulate_grad_hook(partial(_count, found, name))
                stack.callback(hook.remove)
        yield


def _count(found: Pass, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    found.firings.setdefault(name, []).append(parameter.grad._version)


@contextmanager
def watched(model: nn.Module, found: Pass) -> Iterator[None]:
    """Note each module's output: only to name one, for some layers go other ways with a hook."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                hook = module.register_forward_hook(partial(_note, found, name or "the model"))
                stack.callback(hook.remove)
        yield


def _note(found: Pass, name: str, _module: nn.Module, _given: Any, output: Any) -> None:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(first, Tensor):
        return
    with suppress(RuntimeError):  # nested, sparse or empty: no module is named for these
        found.outputs.append((name, int(digests([first.detach()]))))
