"""Values as JSON between the processes of a training, with tuples, arrays and small tensors."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pack(value: Any) -> bytes:
    """Of None, numbers, text, lists, tuples, mappings from text, types, arrays, and tensors on the
    CPU.
    """
    return json.dumps(_told(value)).encode()


def unpack(said: bytes) -> Any:
    """What was packed."""
    return _meant(json.loads(said))


def _told(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_told(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": {name: _told(each) for name, each in value.items()}}
    if isinstance(value, Tensor):
        return {"tensor": _told(value.numpy())}
    if isinstance(value, np.ndarray):
        return {"array": [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)[6:]}
    return int(value) if isinstance(value, np.integer) else value


def _meant(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    [(kind, value)] = said.items()
    if kind in ("list", "tuple"):
        every = [_meant(each) for each in value]
        return tuple(every) if kind == "tuple" else every
    if kind == "dict":
        return {name: _meant(each) for name, each in value.items()}
    if kind == "dtype":
        return getattr(torch, value)
    if kind == "array":
        name, shape, data = value
        return np.frombuffer(bytes.fromhex(data), dtype=name).reshape(shape).copy()
    return torch.from_numpy(_meant(value))
