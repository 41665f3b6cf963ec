"""What a model remembers outside of its parameters and buffers: attributes of modules, of what they
hold, of closures and classes, and globals beside them. Looked at, never changed.
"""

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train.lanes.seeds import is_generator
from train.lanes.state import same

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_STATE = ("_parameters", "_buffers", "_modules")
# Code that is not the user's keeps nothing of interest in globals and classes.
_LIBRARIES = ("torch", "torchvision", "numpy", "builtins", "collections", "functools")
_DEPTH, _MANY = 8, 1000
_STATE_OF = "'s state"
_HELD = (*_PLAIN, Tensor, list, dict, set, deque, np.ndarray)

Picture = dict[str, Any]


def picture(model: nn.Module, *, drawn: bool = True) -> Picture:
    """Each value by its path: plain ones as text, tensors as copies.

    Args:
        drawn: whether to look at generators, and at what classes and files hold, as well.
    """
    found: Picture = {}
    # With the objects themselves: the number of one that is gone may be another's.
    seen: dict[int, Any] = {}
    named = list(model.named_modules())
    seen.update({id(module): module for _, module in named})
    for name, module in named:
        held = {n: v for n, v in _attributes(module).items() if n not in _STATE}
        for leaf, value in held.items():
            _look(f"{name}.{leaf}".lstrip("."), value, found, seen, _DEPTH)
        for path, value in _around(type(module)) if drawn else ():
            _look(path, value, found, seen, _DEPTH)
    return found if drawn else {n: v for n, v in found.items() if not n.endswith(_STATE_OF)}


def difference(one: Picture, other: Picture) -> str | None:
    """The first path whose value is not the same in both; None: they agree."""
    for path in {**one, **other}:
        before, after = one.get(path), other.get(path)
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            if not same(before, after):
                return path
        elif isinstance(before, Tensor) or isinstance(after, Tensor) or before != after:
            return path
    return None


def _attributes(value: object) -> dict[str, Any]:
    try:
        return dict(vars(value))
    except TypeError:  # it has none
        return {}


def _around(kind: type) -> Iterator[tuple[str, Any]]:
    """What the classes of a module, and the file that defines it, hold in names of their own."""
    for base in kind.__mro__:
        if _is_library(base.__module__):
            continue
        for name, value in vars(base).items():
            if not name.startswith("__"):
                yield f"{base.__name__}.{name}", value
        for name, value in vars(sys.modules.get(base.__module__, types)).items():
            held = (
                isinstance(value, _HELD) or is_generator(value) or hasattr(type(value), "__next__")
            )
            if held and not name.startswith("__"):
                yield f"{base.__module__}.{name}", value


def _is_library(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _LIBRARIES


def _look(path: str, value: Any, found: Picture, seen: dict[int, Any], depth: int) -> None:
    if isinstance(value, _PLAIN):
        found[path] = repr(value)
        return
    if isinstance(value, Tensor):
        meta = value.device.type == "meta" or isinstance(value, torch.nn.UninitializedParameter)
        found[path] = None if meta else value.detach().clone()
        return
    if isinstance(value, np.ndarray):
        found[path] = (value.dtype.str, value.shape, value.tobytes())
        return
    if is_generator(value):
        found[f"{path}{_STATE_OF}"] = _state_of(value)
        return
    if depth == 0 or id(value) in seen:
        return
    seen[id(value)] = value
    for name, inner in _inside(value):
        _look(f"{path}{name}", inner, found, seen, depth - 1)


def _inside(value: Any) -> Iterable[tuple[str, Any]]:
    """What a value is made of, with what is added to its path."""
    if isinstance(value, (set, frozenset)):
        value = sorted(map(repr, value))
    if isinstance(value, (list, tuple, deque)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        named = (
            (f"[{key!r}]" if isinstance(key, _PLAIN) else "[…]", v) for key, v in value.items()
        )
        return [("'s length", len(value)), *(named if len(value) <= _MANY else ())]
    if isinstance(value, nn.Module):  # one that is not registered
        own = {k: v for k, v in _attributes(value).items() if k not in (*_STATE, "training")}
        return [("", own), *((f".{name}", tensor) for name, tensor in value.state_dict().items())]
    if callable(value):
        return _of_callable(value)
    if hasattr(type(value), "__next__"):
        return _of_iterator(value)
    library = isinstance(value, (type, types.ModuleType)) or _is_library(type(value).__module__)
    return [] if library else [("", _attributes(value))]


def _of_callable(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, types.FunctionType):
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        held = [(f" ({name})", _content(cell)) for name, cell in zip(names, cells, strict=True)]
        return [*held, ("'s defaults", (value.__defaults__, value.__kwdefaults__, vars(value)))]
    return [] if _is_library(type(value).__module__) else [("", _attributes(value))]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    old = isinstance(generator, np.random.RandomState)
    return repr(generator.get_state(legacy=False) if old else generator.getstate())


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _of_iterator(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        place = None if frame is None else frame.f_lasti
        return [("'s place", place), ("'s locals", dict(inspect.getgeneratorlocals(value)))]
    text = repr(value)  # itertools.count says where it is
    return [] if " at 0x" in text else [("", text)]
