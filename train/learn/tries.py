"""Passes over a model from the same weights, buffers and seed, and what is seen on the way."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn import functional

from host.errors import UsageError
from train.lanes.buffers import is_average, is_counter
from train.lanes.runtime import Runtime
from train.lanes.seeds import Generators
from train.lanes.state import Kept, Slot, slots
from train.lanes.traits import Traits
from train.lanes.tripwire import digests

SAMPLES = 4
"""Images that are enough for a pass."""


@dataclass(frozen=True)
class Samples:
    """What a pass is tried on.

    Attributes:
        images: a few, normalised, on the model's device.
        labels: theirs, int64.
        classes: how many logits are wanted for each.
    """

    images: Tensor
    labels: Tensor
    classes: int


@dataclass
class Pass:
    """What came out of a pass.

    Attributes:
        outputs: each module's name and a digest of its output, in the order of their calls.
        result: the logits, and each gradient by name.
        firings: each time that a parameter's gradient was added to: its version then.
    """

    outputs: list[tuple[str, int]] = field(default_factory=list)
    result: dict[str, Tensor | None] = field(default_factory=dict)
    firings: dict[str, list[int]] = field(default_factory=dict)


class Tries:
    """Passes over a model, each from the same weights, buffers and seed."""

    def __init__(self, model: nn.Module, samples: Samples, runtime: Runtime) -> None:
        self.model, self.samples, self.runtime = model, samples, runtime
        self.kept = Kept(slots(model))
        self.generators = Generators(model)
        self.moving: set[Slot] = set()
        self.late: set[str] = set()

    def evaluate(self) -> Pass:
        """A forward pass as an evaluation's."""
        found = Pass()
        self.kept.put_back()
        self.model.eval()
        with torch.no_grad(), _watched(self.model, found):
            found.result["logits"] = self._logits(self.samples.images)
        self.model.train()
        self.moving |= set(self.kept.moved())
        return found

    def train(self, seed: int = 0) -> Pass:
        """A forward and a backward pass as in training; on other images for another seed."""
        model, found = self.model, Pass()
        images = self.samples.images.flip(0, -1) if seed else self.samples.images
        self.kept.put_back()
        model.train()
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = None
        before = self._places()
        with _watched(model, found):
            logits = self._logits(images, seed)
            if not logits.requires_grad:
                raise UsageError(
                    "no parameter of the model has a gradient: there is nothing to train",
                    "leave some of them unfrozen (requires_grad)",
                )
            functional.cross_entropy(logits, self.samples.labels).backward()
        found.result["logits"] = logits.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise UsageError(
                    f"the gradient of {name} is sparse, which lanes cannot add up",
                    "build that layer with sparse=False",
                )
            found.result[f"the gradient of {name}"] = parameter.grad
            if parameter.grad is not None:
                times = found.firings.get(name, [])
                if times != [parameter.grad._version] or parameter._post_accumulate_grad_hooks:
                    self.late.add(name)
        self._check_places()
        if flags != {name: p.requires_grad for name, p in model.named_parameters()}:
            raise UsageError(
                "the model freezes or unfreezes parameters in its forward pass",
                "freeze them in the constructor",
            )
        self._note_moved()
        # What is written without another value is written to as well: a limit not reached yet.
        after = self._places()
        written = [
            slot for slot, a, b in zip(self.kept.slots, before, after, strict=True) if a != b
        ]
        self.moving |= set(written)
        return found

    def _places(self) -> list[tuple[int, int]]:
        """Where each tensor is now, and how often it was written to."""
        found = ((slot.now, slot.first) for slot in self.kept.slots)
        return [(id(now), first._version) for now, first in found]

    def disturb(self, scale: float) -> None:
        """Go on from other weights, as after some steps: averages of weights differ from them, and
        limits are reached.
        """
        self.kept.put_back()
        generator = torch.Generator().manual_seed(0)
        for slot in self.kept.slots:
            if slot.is_parameter and slot.first.is_floating_point():
                noise = torch.randn(slot.first.shape, generator=generator)
                slot.first.data.mul_(scale).add_(noise.to(slot.first), alpha=0.01)
        self.kept.keep()

    def traits(self) -> Traits:
        """What was found."""
        moving = self.moving
        if any(not (is_average(slot) or is_counter(slot)) for slot in moving):
            # What counts its passes may change another buffer at the hundredth.
            moving |= {slot for slot in self.kept.slots if slot.saved and not slot.is_parameter}
        return Traits(frozenset(slot.name for slot in moving), frozenset(self.late))

    def _note_moved(self) -> None:
        """Note what the pass has changed.

        Raises:
            UsageError: something that no checkpoint would hold.
        """
        moved = set(self.kept.moved())
        for slot in moved:
            if not slot.saved:
                raise UsageError(
                    f"the model changes its buffer {slot.name} in training, and leaves it out of"
                    " checkpoints",
                    "register it with persistent=True",
                )
        self.moving |= moved

    def _logits(self, images: Tensor, seed: int = 0) -> Tensor:
        self.generators.seed_lane(seed, 0, 0)
        with self.runtime.accelerator.autocast():
            logits = self.model(images.clone())
        wanted = (len(images), self.samples.classes)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != wanted:
            got = (
                f"a tensor of {tuple(logits.shape)}"
                if isinstance(logits, Tensor)
                else f"a {type(logits).__name__}"
            )
            raise UsageError(
                f"the model returns {got} for {len(images)} images, and logits of {wanted} are"
                " wanted",
                "return them from forward",
            )
        return logits.float()

    def _check_places(self) -> None:
        """Parameters and buffers are where they were, of the same shapes and types."""
        before = {slot.name: slot for slot in self.kept.slots}
        after = {slot.name: slot for slot in slots(self.model)}
        for name in after.keys() - before.keys():
            raise UsageError(
                f"{name} appears in a forward pass: the optimizer would not know it",
                "build it in the constructor, or with torch's lazy modules",
            )
        for name, slot in before.items():
            now = slot.now
            if now is None or now.shape != slot.first.shape or now.dtype != slot.first.dtype:
                raise UsageError(
                    f"{name} changes its shape or type in a forward pass", "give it a fixed one"
                )
            if slot.is_parameter and now is not slot.first:
                raise UsageError(
                    f"{name} is another parameter after a forward pass: the optimizer would not"
                    " know it",
                    "change it in place",
                )


@contextmanager
def _watched(model: nn.Module, found: Pass) -> Iterator[None]:
    """Note each module's output, and how often each gradient is added to."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                hook = module.register_forward_hook(partial(_note, found, name or "the model"))
                stack.callback(hook.remove)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                hook = parameter.register_post_accumulate_grad_hook(partial(_count, found, name))
                stack.callback(hook.remove)
        yield


def _note(found: Pass, name: str, _module: nn.Module, _given: Any, output: Any) -> None:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if isinstance(first, Tensor) and first.numel():
        found.outputs.append((name, int(digests([first.detach()]))))


def _count(found: Pass, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    found.firings.setdefault(name, []).append(parameter.grad._version)


@contextmanager
def alone() -> Iterator[None]:
    """Let no model talk to other processes, or ask how many there are: what it computes would
    follow from that, and here nobody would answer.
    """
    before = distributed_c10d._get_default_group
    distributed_c10d._get_default_group = _refuse  # all that torch.distributed does asks it first
    try:
        yield
    finally:
        distributed_c10d._get_default_group = before


def _refuse() -> NoReturn:
    raise UsageError(
        "the model talks to other processes in its forward pass, or asks how many there are",
        "leave that out: a lane is to be the same, whoever computes it",
    )
