"""A model's tensors as bytes, with the versions that its modules give to their layout.

Files are safetensors. Some modules read their tensors by the version that wrote them (batch norm,
torchvision's MNASNet); state dicts carry it beside the tensors, and here the file's header does.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

Versions = dict[str, dict[str, int]]
_VERSIONS = TypeAdapter(Versions)
_KEY = "versions"


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each in memory of its own: what shares some cannot be written."""
    whole = torch.contiguous_format
    return {name: t.detach().cpu().clone(memory_format=whole) for name, t in tensors.items()}


def pack(state: Mapping[str, Tensor]) -> bytes:
    """A file of what `model.state_dict()` gave."""
    about = {"format": "pt", _KEY: json.dumps(_versions(state))}
    return _ordered(save(contiguous(state), about))


def _ordered(data: bytes) -> bytes:
    """The same file with its header in one order: the library draws one each time."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = header.pop("__metadata__")
    ordered = {"__metadata__": dict(sorted(about.items())), **header}
    text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[8 + size :]))


def unpack(data: bytes) -> tuple[dict[str, Tensor], Versions | None]:
    """A file's tensors and versions; None where it does not say them.

    Raises:
        SafetensorError: it is no such file.
        ValueError: what it says of versions is none.
    """
    tensors = load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    return tensors, _read_versions(about[_KEY]) if _KEY in about else None


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
    known = _versions(model.state_dict()) if versions is None else versions
    state._metadata = OrderedDict(known)  # type: ignore[attr-defined]
    model.load_state_dict(state)


def _versions(state: Mapping[str, Tensor]) -> Versions:
    about = getattr(state, "_metadata", {})
    return {name: {"version": kept["version"]} for name, kept in about.items() if "version" in kept}
