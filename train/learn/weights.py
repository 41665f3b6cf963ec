"""A model's tensors as bytes, with the versions that its modules give to their layout.

Files are safetensors. Some modules read their tensors by the version that wrote them (batch norm,
torchvision's MNASNet); state dicts carry it beside the tensors, and here the file's header does.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

Versions = dict[str, dict[str, int]]
_VERSIONS = TypeAdapter(Versions)
_KEY = "versions"


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each in memory of its own."""
    return {name: _own(tensor) for name, tensor in tensors.items()}


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def copied(state: MutableMapping[str, Any]) -> dict[str, Any]:
    """What `state_dict()` gave as it is now, its tensors in memory of their own on the CPU.

    The state is emptied on the way: what was gathered from shards is not there twice.
    """
    copy = OrderedDict[str, Any]()
    copy._metadata = getattr(state, "_metadata", {})  # type: ignore[attr-defined]
    for name in list(state):
        value = state.pop(name)
        copy[name] = _own(value) if isinstance(value, Tensor) else value
    return copy


def pack(state: Mapping[str, Tensor]) -> bytes:
    """A file of what `model.state_dict()` gave."""
    return b"".join(pieces(state, versions_of(state)))


def pieces(
    tensors: Mapping[str, Tensor], versions: Versions | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of a file of tensors, piece by piece: none of them is copied.

    The library copies all of them, and draws an order of its header each time; the same tensors
    give the same bytes here.

    Raises:
        TypeError: the format has no such numbers as one of them.
    """
    about: dict[str, Any] = {"format": "pt"}
    if versions is not None:
        about[_KEY] = json.dumps(versions)
    header: dict[str, Any] = {"__metadata__": about}
    # Wide numbers first, as the library has them: each begins at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    end = 0
    for name, tensor in ordered:
        if _kind(tensor.dtype) is None:
            raise TypeError(f"{name} is {tensor.dtype}, which no checkpoint can hold")
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": _kind(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    head = len(text).to_bytes(8, "little") + text
    return chain([head], (_bytes(tensor) for _, tensor in ordered))


@cache
def _kind(dtype: torch.dtype) -> str | None:
    """What the format calls numbers of a type, as the library writes it; None: it has none such."""
    with suppress(KeyError):
        data = save({"one": torch.empty(1, dtype=dtype)})
        said = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["one"]
        if said["shape"] == [1]:  # of two in a byte it would say two
            return str(said["dtype"])
    return None


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def reread(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Versions]:
    """What `unpack` would make of what `pack` makes of it, without its bytes.

    Raises:
        TypeError: the format has no such numbers as one of them.
        ValueError: its modules' versions are none.
    """
    versions = versions_of(state)
    pieces(state, versions)  # which says what cannot be written
    return contiguous(state), _read_versions(json.dumps(versions))


def unpack(data: bytes) -> tuple[dict[str, Tensor], Versions | None]:
    """A file's tensors and versions; None where it does not say them.

    Raises:
        SafetensorError: it is no such file.
        ValueError: what it says of versions is none.
    """
    tensors = load(data)
    size = int.from_bytes(data[:8], "little")
    return tensors, versions_in(json.loads(data[8 : 8 + size]).get("__metadata__") or {})


def versions_in(about: Mapping[str, str]) -> Versions | None:
    """The versions that a file's header says; None where it says none.

    Raises:
        ValueError: what it says of versions is none.
    """
    return _read_versions(about[_KEY]) if _KEY in about else None


def shapes(path: Path) -> dict[str, list[int]]:
    """Each tensor's shape in a file, by name; the tensors are not read."""
    with safe_open(path, "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (it is no mapping)


def _read_versions(text: str) -> Versions:
    try:
        return _VERSIONS.validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError("its header says no versions of modules") from error


def put(model: nn.Module, tensors: Mapping[str, Tensor], versions: Versions | None) -> None:
    """Load tensors into a model, all of them.

    Args:
        versions: None: those of the model, as of a file that this version of it has written.

    Raises:
        RuntimeError: they are of another model.
    """
    state = OrderedDict(tensors)
    known = versions_of(model.state_dict()) if versions is None else versions
    state._metadata = OrderedDict(known)  # type: ignore[attr-defined]
    model.load_state_dict(state)


def versions_of(state: Mapping[str, Tensor]) -> Versions:
    """The versions that `model.state_dict()` carries beside its tensors."""
    about = getattr(state, "_metadata", {})
    return {name: {"version": kept["version"]} for name, kept in about.items() if "version" in kept}
