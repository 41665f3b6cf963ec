"""A model's parameters and buffers where they are now, kept as they are, and put back.

Models put another tensor in a buffer's place (`self.average = …`), or change one behind autograd's
back (`.data`). So each is looked up by its place, and what is put back goes into the first tensor.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from host.errors import UsageError


@dataclass(frozen=True, eq=False)
class Slot:
    """A place of a model that holds a parameter or a buffer.

    Attributes:
        name: as `state_dict` has it.
        owner: the module.
        places: its parameters, or its buffers, by name.
        leaf: the name among them.
        first: the tensor that was there when the slot was made.
        also: other places that hold the same tensor.
    """

    name: str
    owner: nn.Module
    places: dict[str, Any]
    leaf: str
    first: Tensor
    also: list[tuple[dict[str, Any], str]] = field(default_factory=list)

    @property
    def now(self) -> Tensor | None:
        """The tensor that is there now; None where there is none any more."""
        try:
            return held(self.places[self.leaf])
        except KeyError:
            return None

    @property
    def is_parameter(self) -> bool:
        """Whether it is no buffer."""
        return self.places is self.owner._parameters


def held(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, or its part where it is sharded."""
    # By its attribute: to import torch's class takes half a second, and most runs shard nothing.
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def slots(model: nn.Module) -> list[Slot]:
    """All of a model's, each tensor once, but for buffers that are not saved: those are to be the
    same whatever fills them, as attributes are.

    Raises:
        UsageError: one of them cannot be written to without another.
    """
    found = list(_slots(model))
    _check_apart(found)
    return [slot for slot in found if slot.leaf not in slot.owner._non_persistent_buffers_set]


def _check_apart(found: list[Slot]) -> None:
    """No two overlap: to be moved to a device, or loaded, would part them."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for slot in found:
        tensor = slot.first
        if tensor.numel() and tensor.is_contiguous() and tensor.device.type != "meta":
            start = tensor.data_ptr()
            owner = tensor.untyped_storage().data_ptr()
            spans.setdefault(owner, []).append((start, start + tensor.nbytes, slot.name))
    for parts in spans.values():
        parts.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(parts):
            if start < end:
                raise UsageError(
                    f"{one} and {other} share memory, and would be parted on another device or by a"
                    " checkpoint",
                    "make one a view of the other where it is used (a property), or .clone() it",
                )


def _slots(model: nn.Module) -> Iterator[Slot]:
    seen: dict[int, Slot] = {}
    for prefix, module in model.named_modules():
        for places in (module._parameters, module._buffers):
            for leaf, whole in places.items():
                if whole is None:
                    continue
                if id(whole) in seen:
                    seen[id(whole)].also.append((places, leaf))
                    continue
                tensor = held(whole)
                name = f"{prefix}.{leaf}" if prefix else leaf
                if tensor.layout is not torch.strided:
                    raise UsageError(
                        f"{name} is a sparse tensor, which cannot be compared bit by bit",
                        "keep its indices and values as dense buffers, and build it in forward",
                    )
                if torch._debug_has_internal_overlap(tensor) == 1:
                    raise UsageError(
                        f"{name} has several elements in one place (an expanded tensor), so no"
                        " checkpoint could be loaded into it",
                        "make it of its own: .contiguous(), or .clone()",
                    )
                seen[id(whole)] = Slot(name, module, places, leaf, tensor)
                yield seen[id(whole)]


def move(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model to a device. What is one buffer in several places is one there as well: torch
    would make several of it, or not, as it has to copy it or not.
    """
    several = [slot for slot in list(_slots(model)) if slot.also and not slot.is_parameter]
    moved = model.to(device)
    for slot in several:
        for places, leaf in slot.also:
            places[leaf] = slot.places[slot.leaf]
    return moved


class Kept:
    """The values of some slots at a moment."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        # Copied at once where types are the same: on a GPU each copy is a kernel to start.
        kinds: dict[Any, list[int]] = {}
        for number, slot in enumerate(self.slots):
            kinds.setdefault((slot.first.dtype, slot.first.device), []).append(number)
        self._kinds = [(ns, [self.slots[n].first for n in ns]) for ns in kinds.values()]
        self.values: list[Tensor] = []
        self.keep()

    def keep(self) -> None:
        """Keep them as they are now."""
        self.values = []  # as large as the model: not beside the new ones
        now = [_now(slot) for slot in self.slots]
        usual = all(tensor.layout is torch.strided for tensor in now)
        self.values = [torch.empty_like(t) if usual else t.clone() for t in now]
        for numbers, _ in self._kinds if usual else ():
            torch._foreach_copy_([self.values[n] for n in numbers], [now[n] for n in numbers])

    def put_back(self) -> None:
        """Have them all as they were."""
        self.put(self.values)

    def renew(self) -> None:
        """Have other tensors of these values in their places, until they are put back."""
        for slot, value in zip(self.slots, self.values, strict=True):
            new = value.clone()
            for places, leaf in ((slot.places, slot.leaf), *slot.also):
                places[leaf] = new

    def put(self, values: Sequence[Tensor]) -> None:
        """Have these values in the slots' first tensors, and those in their places.

        Raises:
            UsageError: one of them was resized.
        """
        for slot, value in zip(self.slots, values, strict=True):
            if slot.first.shape != value.shape:
                raise UsageError(
                    f"{slot.name} changes its shape in a forward pass", "give it a fixed one"
                )
            if slot.now is not slot.first:
                slot.places[slot.leaf] = slot.first
                for places, leaf in slot.also:
                    places[leaf] = slot.first
        with torch.no_grad():
            for numbers, first in self._kinds:
                torch._foreach_copy_(first, [values[n] for n in numbers])

    def changed(self) -> "Kept":
        """The same of those alone that have changed since."""
        moved = set(self.moved())
        found = Kept([slot for slot in self.slots if slot in moved])
        found.values = [v for s, v in zip(self.slots, self.values, strict=True) if s in moved]
        return found

    def moved(self) -> list[Slot]:
        """Those whose bits are not what they were."""
        pairs = zip(self.slots, self.values, strict=True)
        return [slot for slot, value in pairs if not same(slot.now, value)]


def _now(slot: Slot) -> Tensor:
    now = slot.now
    return (slot.first if now is None else now).detach()


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors have the same bits; NaN is as good as any other value."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's bits, uint8 [bytes]."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def laid_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The same values in the layout of `like`. Sums follow a layout, and so their bits do; loops
    over many tensors at once are slow where those that belong together have several.
    """
    if tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def in_place_of(like: Tensor, flat: Tensor, start: int) -> Tensor:
    """A view of `flat` from `start` on, of the shape and the layout of `like`."""
    strides = torch.empty_like(like, device="meta").stride()
    return flat[start : start + like.numel()].as_strided(like.shape, strides)


def from_bytes(flat: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """Tensors of the shapes and types of `like`, from the bits of one after another."""
    found, start = [], 0
    for tensor in like:
        part = flat[start : start + tensor.nbytes].clone()
        found.append(part.view(tensor.dtype).view(tensor.shape))
        start += tensor.nbytes
    return found
