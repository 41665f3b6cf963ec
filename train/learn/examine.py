"""Is a training a function of seed, data and what checkpoints hold? Tried before it begins.

A few small passes on a model that is thrown away. What remembers something outside of parameters
and buffers (a counter in an attribute, a generator that nobody seeds) gives other results when it
is asked again, or leaves other attributes behind: it would not survive a resume, and the number of
lanes that a process runs would show. Such a model is refused by name, before the first step.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from host.errors import UsageError
from train.lanes.buffers import is_average, is_counter
from train.lanes.runtime import Runtime
from train.lanes.seeds import Generators
from train.lanes.state import Kept, Slot, same, slots
from train.lanes.traits import Traits
from train.lanes.tripwire import digests
from train.learn import attributes, weights

SAMPLES = 4
"""Images that are enough for a pass."""
_KEEP = (
    "keep what it remembers in buffers (register_buffer), and draw from the generators of torch,"
    " numpy or Python"
)


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
class _Pass:
    """What came out of a pass.

    Attributes:
        outputs: each module's name and a digest of its output, in the order of their calls.
        result: the logits, and each gradient by name.
        firings: each time that a parameter's gradient was added to: its version then.
        late: the parameters whose gradient was not added once and left alone.
    """

    outputs: list[tuple[str, int]] = field(default_factory=list)
    result: dict[str, Tensor | None] = field(default_factory=dict)
    firings: dict[str, list[int]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)


def examine(
    model: nn.Module, twin: nn.Module, samples: Samples, runtime: Runtime, *, lockstep: bool
) -> Traits:
    """What a model does that others do not.

    Args:
        model: as it is to be trained; not touched.
        twin: built a second time, from the same seed; of no use afterwards.

    Raises:
        UsageError: training would not come out the same again; naming what is in the way.
    """
    _check_twins(model, twin)
    if lockstep:
        _check_kinds(twin)
    kept = Kept(slots(twin))
    trying = _Trying(twin, kept, samples, runtime)
    images = samples.images
    looks = [trying.evaluate()]
    moving = set(kept.moved())
    passes = [trying.train(images)]
    pictures = [attributes.picture(twin)]
    moving |= _moved(kept)
    passes.append(trying.train(images.flip(0, -1), seed=1))
    moving |= _moved(kept)
    for _ in range(2):
        passes.append(trying.train(images))
        pictures.append(attributes.picture(twin))
        moving |= _moved(kept)
    trying.disturb()
    trying.train(images)
    moving |= _moved(trying.kept)
    _check_resume(twin, kept)
    trying.kept = kept
    looks.append(trying.evaluate())
    for before, after in ((pictures[0], pictures[1]), (pictures[1], pictures[2])):
        path = attributes.difference(before, after)
        if path is not None:
            raise UsageError(
                f"the model remembers something in {path}: no checkpoint holds that, and it would"
                " follow how many lanes a process runs",
                _KEEP,
            )
    for one, again in ((passes[0], passes[2]), (passes[2], passes[3]), (looks[0], looks[1])):
        _check_same(one, again)
    late = {name for one in passes for name in one.late}
    if any(not (is_average(slot) or is_counter(slot)) for slot in moving):
        # What counts its passes may change another buffer at the hundredth.
        moving |= {slot for slot in kept.slots if slot.saved and not slot.is_parameter}
    return Traits(frozenset(slot.name for slot in moving), frozenset(late))


class _Trying:
    """Passes over a model, each from the same weights, buffers and seed."""

    def __init__(self, model: nn.Module, kept: Kept, samples: Samples, runtime: Runtime) -> None:
        self.model, self.kept, self.samples, self.runtime = model, kept, samples, runtime
        self.generators = Generators(model)

    def evaluate(self) -> _Pass:
        """A forward pass as an evaluation's."""
        found = _Pass()
        self.kept.put_back()
        self.model.eval()
        with torch.no_grad(), _watched(self.model, found):
            found.result["logits"] = self._logits(self.samples.images)
        self.model.train()
        return found

    def train(self, images: Tensor, seed: int = 0) -> _Pass:
        """A forward and a backward pass as in training."""
        model, found = self.model, _Pass()
        self.kept.put_back()
        model.train()
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = None
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
                    found.late.add(name)
        self._check_places()
        if flags != {name: p.requires_grad for name, p in model.named_parameters()}:
            raise UsageError(
                "the model freezes or unfreezes parameters in its forward pass",
                "freeze them in the constructor",
            )
        return found

    def disturb(self) -> None:
        """Go on from other weights, as after some steps: averages of weights differ from them."""
        self.kept.put_back()
        generator = torch.Generator().manual_seed(0)
        for slot in self.kept.slots:
            if slot.is_parameter and slot.first.is_floating_point():
                noise = torch.randn(slot.first.shape, generator=generator)
                slot.first.data.add_(noise.to(slot.first), alpha=0.01)
        self.kept = Kept(self.kept.slots)

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
def _watched(model: nn.Module, found: _Pass) -> Iterator[None]:
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


def _note(found: _Pass, name: str, _module: nn.Module, _given: Any, output: Any) -> None:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if isinstance(first, Tensor) and first.numel():
        found.outputs.append((name, int(digests([first.detach()]))))


def _count(found: _Pass, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    found.firings.setdefault(name, []).append(parameter.grad._version)


def _moved(kept: Kept) -> set[Slot]:
    """What the pass has changed.

    Raises:
        UsageError: something that no checkpoint would hold.
    """
    moved = set(kept.moved())
    for slot in moved:
        if not slot.saved:
            raise UsageError(
                f"the model changes its buffer {slot.name} in training, and leaves it out of"
                " checkpoints",
                "register it with persistent=True",
            )
    return moved


def _check_twins(model: nn.Module, twin: nn.Module) -> None:
    pairs = {slot.name: slot for slot in slots(twin)}
    for slot in slots(model):
        other = pairs.get(slot.name)
        if other is None or not same(slot.now, other.now):
            raise UsageError(
                f"{slot.name} does not begin with the same numbers when the model is built again",
                "draw initial weights from torch's, numpy's or Python's own generator",
            )


def _check_kinds(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{name} is a SyncBatchNorm, which looks at all processes at once",
                "use BatchNorm: at lockstep it sees a lane, on any number of processes",
            )


def _check_same(one: _Pass, again: _Pass) -> None:
    for name in one.result:
        if not same(one.result[name], again.result.get(name)):
            pairs = zip(one.outputs, again.outputs, strict=False)
            module = next((a[0] for a, b in pairs if a != b), None)
            where = f"{module} gives" if module else f"{name} comes out as"
            raise UsageError(
                f"{where} something else when it is asked again, from the same weights, buffers and"
                " seed",
                _KEEP,
            )


def _check_resume(model: nn.Module, kept: Kept) -> None:
    """What a checkpoint gives back is what was there."""
    trained = Kept(kept.slots)
    try:
        state = model.state_dict()
        strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if strange:
            raise UsageError(
                f"the model's state_dict holds {strange[0]}, which is no tensor",
                "keep it as a tensor: checkpoints hold nothing that could run code",
            )
        packed = weights.pack(state)
        kept.put_back()
        weights.put(model, *weights.unpack(packed))
    except (RuntimeError, SafetensorError, KeyError, AttributeError, TypeError) as error:
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise UsageError(
            f"a checkpoint could not give the model back: {type(error).__name__}: {said}",
            "mend its state_dict, load_state_dict, or the types of its tensors",
        ) from error
    lost = [slot for slot in trained.moved() if slot.saved]
    if lost:
        raise UsageError(
            f"a checkpoint would not give {lost[0].name} back as it was",
            "mend the model's state_dict or load_state_dict",
        )
