"""What a model remembers outside of its parameters and buffers: attributes of modules, of what they
hold, of closures and classes, and globals beside them. Looked at, never changed.
"""

import functools
import inspect
import random
import sys
import types
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train.lanes.state import same

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), np.generic)
_STATE = ("_parameters", "_buffers", "_modules")
# Code that is not the user's keeps nothing of interest in globals and classes.
_LIBRARIES = ("torch", "torchvision", "numpy", "builtins", "collections", "functools")
_DEPTH, _MANY = 8, 20_000
_HELD = (*_PLAIN, Tensor, list, dict, set, deque, np.ndarray, types.SimpleNamespace)

Picture = dict[str, Any]


def picture(model: nn.Module) -> Picture:
    """Each value by its path: plain ones as text, tensors as copies, generators as their state."""
    return {path: _frozen(value) for path, value in _walk(model)}


def numbers(model: nn.Module) -> Picture:
    """Of a picture what a model is built with and computes with: tensors, arrays and fractions."""
    kinds = (Tensor, np.ndarray, float, complex, np.floating)
    return {path: _frozen(v) for path, v in _walk(model, outside=False) if isinstance(v, kinds)}


def generators(model: nn.Module) -> list[Any]:
    """All that can be seeded among what a model holds, each once, in the order of their paths."""
    found = {id(value): value for _, value in _walk(model) if is_generator(value)}
    return list(found.values())


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


def is_generator(value: Any) -> bool:
    """Whether it can be seeded, and gives random numbers that follow from that."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _walk(model: nn.Module, *, outside: bool = True) -> Iterator[tuple[str, Any]]:
    """All values that a model holds, with their paths.

    Args:
        outside: whether to look at what its classes and their files hold as well.
    """
    # With the objects themselves: the number of one that is gone may be another's.
    seen: dict[int, Any] = {}
    kinds: set[type] = set()
    named = list(model.named_modules())
    seen.update({id(module): module for _, module in named})
    for name, module in named:
        for leaf, value in _held(module).items():
            yield from _inner(f"{name}.{leaf}".lstrip("."), value, seen, _DEPTH)
        if outside:
            for path, value in _around(type(module), kinds):
                yield from _inner(path, value, seen, _DEPTH)


def _held(module: nn.Module) -> dict[str, Any]:
    """A module's attributes beside its parameters, children, and buffers that are saved."""
    held = {n: v for n, v in _attributes(module).items() if n not in _STATE}
    for name, value in held.items():
        if "_hooks" in name and isinstance(value, dict):  # by numbers that all models share
            held[name] = list(value.values())
    held |= {n: module._buffers.get(n) for n in sorted(module._non_persistent_buffers_set)}
    for places in (module._parameters, module._buffers):
        held |= {f"{n}'s own": vars(t) for n, t in places.items() if t is not None and vars(t)}
    return held


def _attributes(value: object) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _around(kind: type, known: set[type]) -> Iterator[tuple[str, Any]]:
    """What the classes of a module, and the files that define them, hold in names of their own;
    not of those that are known, which then all are.
    """
    for base in kind.__mro__:
        if _is_library(base.__module__) or base in known:
            continue
        known.add(base)
        for name, value in vars(base).items():
            if not name.startswith("__"):
                yield f"{base.__name__}.{name}", value
        file = sys.modules.get(base.__module__)
        for name, value in vars(file).items() if file else ():
            own = type(value).__module__.split(".")[0] == base.__module__.split(".")[0]
            held = (
                isinstance(value, _HELD)
                or is_generator(value)
                or hasattr(type(value), "__next__")
                or own
            )
            if held and not name.startswith("__"):
                yield f"{base.__module__}.{name}", value


def _is_library(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _LIBRARIES


def _inner(path: str, value: Any, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (*_PLAIN, Tensor, np.ndarray)) or is_generator(value):
        yield path, value
        return
    if depth == 0 or id(value) in seen:
        return
    seen[id(value)] = value
    for name, inner in _inside(value):
        yield from _inner(f"{path}{name}", inner, seen, depth - 1)


def _frozen(value: Any) -> Any:
    """A value as it is now, to be compared with what it is later."""
    if isinstance(value, Tensor):
        known = value.device.type != "meta" and not torch.nn.parameter.is_lazy(value)
        return value.detach().clone() if known else None
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return _state_of(value) if is_generator(value) else repr(value)


def _inside(value: Any) -> Iterable[tuple[str, Any]]:
    """What a value is made of, with what is added to its path."""
    if isinstance(value, (UserDict, UserList)):
        value = value.data
    if isinstance(value, (set, frozenset)):
        value = sorted(map(repr, value))
    if isinstance(value, (list, tuple, deque)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        named = (
            (f"[{key!r}]" if isinstance(key, _PLAIN) else f"[key {n}]", v)
            for n, (key, v) in enumerate(value.items())
        )
        return [("'s length", len(value)), *(named if len(value) <= _MANY else ())]
    if isinstance(value, nn.Module):  # one that is not registered
        return _of_module(value)
    if isinstance(value, torch.optim.Optimizer):
        return [(".state", list(value.state.values())), (".param_groups", value.param_groups)]
    if callable(value):
        return _of_callable(value)
    if hasattr(type(value), "__next__"):
        return _of_iterator(value)
    library = isinstance(value, (type, types.ModuleType)) or _is_library(type(value).__module__)
    return [] if library else [("", _attributes(value))]


def _of_module(module: nn.Module) -> Iterable[tuple[str, Any]]:
    for name, inner in module.named_modules(prefix=""):
        prefix = f".{name}" if name else ""
        # Its mode is the trainer's doing where the model passes it on, and shows in what it gives.
        held = {n: v for n, v in _held(inner).items() if n != "training"}
        yield prefix, held
        for places in (inner._parameters, inner._buffers):
            yield from ((f"{prefix}.{n}", tensor) for n, tensor in places.items())


def _of_callable(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, types.FunctionType):
        if _is_library(value.__module__ or ""):
            return []
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
