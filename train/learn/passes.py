"""What came out of one pass over a model, and the hooks that see it on the way."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from train.lanes.state import as_bytes
from train.lanes.tripwire import digests


@dataclass
class Pass:
    """What came out of a pass.

    Attributes:
        result: the logits, each gradient, and what the pass left where it changed something.
        outputs: of a watched pass: each module's name and a digest of its output, in the order of
            their calls.
        firings: each time that a parameter's gradient was added to: its version then.
    """

    result: dict[str, Tensor | None] = field(default_factory=dict)
    outputs: list[tuple[str, int]] = field(default_factory=list)
    firings: dict[str, list[int]] = field(default_factory=dict)

    def digest(self) -> str:
        """Sixteen hexadecimal digits of the result's bits."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.result.items()):
            found.update(name.encode())
            if tensor is not None:
                found.update(as_bytes(tensor).cpu().numpy().data)
        return found.hexdigest()[:16]

    def digests(self) -> dict[str, str | None]:
        """Of each tensor of the result its type, shape and SHA-256, in place of the tensor."""
        return {
            name: tensor if tensor is None else _told(tensor)
            for name, tensor in self.result.items()
        }


def _told(tensor: Tensor) -> str:
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
    if isinstance(first, Tensor) and first.layout is torch.strided and first.numel():
        found.outputs.append((name, int(digests([first.detach()]))))
