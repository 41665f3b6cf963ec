"""Passes over a model from the same weights, buffers and seed, and what is seen on the way."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from host.errors import UsageError
from train.lanes.buffers import is_average, is_counter
from train.lanes.runtime import Runtime
from train.lanes.seeds import Generators
from train.lanes.state import Kept, Slot, slots
from train.lanes.traits import Traits
from train.learn.loss import Loss
from train.learn.passes import Pass, counted, watched

SAMPLES = 4
"""Images that are enough for a pass, for most models."""


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


class Tries:
    """Passes over a model, each from the same weights, buffers and seed.

    Args:
        place: what each pass is done in.
        loss: the user's own, where there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Samples,
        runtime: Runtime,
        place: Callable[[], AbstractContextManager[None]] = nullcontext,
        loss: Loss | None = None,
    ) -> None:
        self.model, self.samples, self.runtime, self._place = model, samples, runtime, place
        self.loss = loss or functional.cross_entropy
        self.kept = Kept(slots(model))
        self.generators = Generators(model)
        self._moving: set[Slot] = set()
        self._measured: set[Slot] = set()
        self._late: set[str] = set()

    def size(self, images: Tensor, *, training: bool) -> None:
        """Pass these images through, as a lane or as a batch of an evaluation."""
        with self.within(training=training), torch.set_grad_enabled(training):
            self._logits(images)

    def evaluate(self, *, watch: bool = False) -> Pass:
        """A forward pass as an evaluation's."""
        found = Pass()
        hooks = watched(self.model, found) if watch else nullcontext()
        with self.within(training=False), torch.no_grad(), hooks:
            found.result["logits"] = self._logits(self.samples.images)
        self._measured |= self._moved(found)
        return found

    def images(self, seed: int) -> Tensor:
        """The images of a pass: others where the seed is not 0."""
        images = self.samples.images
        return images.flip(0, -1) * 0.7 + 0.1 if seed else images

    def forward(self, seed: int) -> None:
        """A forward pass as in training, to see what it changes where it has drawn otherwise."""
        with self.within(training=True):
            before = self._marks()
            self._logits(self.samples.images, seed)
        self._moving |= self._written(before) | set(self.kept.moved())

    def train(self, seed: int = 0, *, filled: bool = False, watch: bool = False) -> Pass:
        """A forward and a backward pass as in training.

        Args:
            seed: on other images as well where it is not 0.
            filled: whether there are gradients of ones already, as a lane's neighbour leaves some.
        """
        model, found = self.model, Pass()
        images = self.images(seed)
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        for parameter in model.parameters():
            ones = filled and parameter.requires_grad
            parameter.grad = torch.ones_like(parameter) if ones else None
        hooks = watched(model, found) if watch else nullcontext()
        with self.within(training=True), counted(model, found), hooks:
            before = self._marks()
            logits = self._logits(images, seed)
            if not logits.requires_grad:
                raise UsageError(
                    "no parameter of the model has a gradient: there is nothing to train",
                    "leave some of them unfrozen (model.freeze, or requires_grad in your code)",
                )
            self.loss(logits, self.samples.labels).sum().backward()
        found.result["logits"] = logits.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise UsageError(
                    f"the gradient of {name} is sparse, which lanes cannot add up",
                    "build that layer with sparse=False",
                )
            found.result[f"the gradient of {name}"] = parameter.grad
            if parameter.grad is not None and not filled:
                times = found.firings.get(name, [])
                if times != [parameter.grad._version] or parameter._post_accumulate_grad_hooks:
                    self._late.add(name)
        self._check_places()
        if flags != {name: p.requires_grad for name, p in model.named_parameters()}:
            raise UsageError(
                "the model freezes or unfreezes parameters in its forward pass",
                "freeze them in the constructor",
            )
        # What is written without another value is written to as well: a limit not reached yet.
        self._moving |= self._moved(found) | self._written(before)
        return found

    def disturb(self, scale: float) -> None:
        """Go on from other weights, as after some steps: averages of weights differ from them, and
        limits are reached. Where the model cannot do with them, from those that it has.
        """
        self._move_weights(scale)
        try:
            with self._place():
                self.model.train()
                self.loss(self._logits(self.samples.images), self.samples.labels).sum().backward()
        except (ArithmeticError, RuntimeError, ValueError):  # a probability of 1.5, for instance
            self.forget_gradients()
            return
        self.forget_gradients()
        # The same again, for the pass has moved what is no weight; kept, they would be there twice.
        self._move_weights(scale)
        self.kept.keep()

    def _move_weights(self, scale: float) -> None:
        self.kept.put_back()
        generator = torch.Generator().manual_seed(0)
        for slot in self.kept.slots:
            if slot.is_parameter and slot.first.is_floating_point() and slot.first.requires_grad:
                noise = torch.randn(slot.first.shape, generator=generator)
                slot.first.data.mul_(scale).add_(noise.to(slot.first), alpha=0.01)

    def forget_gradients(self) -> None:
        """Drop those of the last pass, which are as large as the weights."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def traits(self) -> Traits:
        """What was found."""
        moving, measured = self._names(self._moving), self._names(self._measured)
        return Traits(moving, measured, frozenset(self._late))

    def is_late(self, name: str) -> bool:
        """Whether the gradient of that parameter was seen to come in several parts."""
        return name in self._late

    @contextmanager
    def within(self, *, training: bool) -> Iterator[None]:
        """A pass: from what the model began with, in the mode and the place that it is tried in."""
        self.kept.put_back()
        with self._place():
            self.model.train(training)
            yield
            # As after an evaluation: some layers merge their weights for it, and part them again.
            if not training:
                self.model.train()

    def _names(self, moved: set[Slot]) -> frozenset[str]:
        names = {slot.name for slot in moved}
        if any(not (is_average(slot) or is_counter(slot)) for slot in moved):
            # What counts its passes may change another buffer at the hundredth.
            others = (s for s in self.kept.slots if not s.is_parameter)
            names |= {s.name for s in others if not (is_average(s) or is_counter(s))}
        return frozenset(names)

    def _moved(self, found: Pass) -> set[Slot]:
        """What the pass has changed; its values are part of the result."""
        moved = set(self.kept.moved())
        for slot in moved:
            now = slot.now
            found.result[slot.name] = None if now is None else now.detach().clone()
        return moved

    def _marks(self) -> list[tuple[int, int]]:
        """Where each tensor is now, and how often it was written to."""
        found = ((slot.now, slot.first) for slot in self.kept.slots)
        return [(id(now), first._version) for now, first in found]

    def _written(self, before: list[tuple[int, int]]) -> set[Slot]:
        pairs = zip(self.kept.slots, before, self._marks(), strict=True)
        return {slot for slot, one, other in pairs if one != other}

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
                "return them alone from forward, in training as well",
            )
        return logits.float()

    def _check_places(self) -> None:
        """Parameters and buffers are where they were, of the same shapes and types."""
        before = {slot.name: slot for slot in self.kept.slots}
        after = {slot.name: slot for slot in slots(self.model)}
        for name in sorted(after.keys() - before.keys()):
            raise UsageError(
                f"{name} appears in a forward pass: neither the optimizer nor checkpoints would"
                " know it",
                "build it in the constructor, or with torch's lazy modules; or register_buffer(…,"
                " persistent=False) where it follows from shapes alone",
            )
        for name, slot in before.items():
            now = slot.now
            if now is None or now.shape != slot.first.shape or now.dtype != slot.first.dtype:
                raise UsageError(
                    f"{name} changes its shape or type in a forward pass",
                    "give it a fixed one (observers of fake quantisation: one for each tensor)",
                )
            if slot.is_parameter and now is not slot.first:
                raise UsageError(
                    f"{name} is another parameter after a forward pass: the optimizer would not"
                    " know it",
                    "change it in place",
                )
