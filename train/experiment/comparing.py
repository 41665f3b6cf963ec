"""What two experiments differ in, and how one is written."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import yaml

from train.config import Config, knobs
from train.knobs import is_free

_EXACT = 1e15  # whole numbers below are floats exactly
_SHOWN = 8  # knobs that are named in one message


def dump(config: Config) -> str:
    """The whole experiment as YAML, which `load` takes back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Knobs that decide the result and differ: dotted name, and both values."""
    return [(name, a, b) for name, a, b, free in every_difference(one, other) if not free]


def every_difference(one: Config, other: Config) -> list[tuple[str, Any, Any, bool]]:
    """All knobs that differ: dotted name, both values, and whether it decides nothing."""
    return [
        (name, value(one, name), value(other, name), is_free(field))
        for name, field in knobs()
        if value(one, name) != value(other, name)
    ]


def value(config: Config, name: str) -> Any:
    """A knob's, by its dotted name."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


def typed(value: Any) -> str:
    """A knob's value as it is given on the command line."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)  # 30 of 30.0
    return value if isinstance(value, str) else json.dumps(value)


def told(other: Sequence[tuple[str, Any, Any]]) -> str:
    """Knobs that differ, for people: epochs 30, and not 4.

    Args:
        other: name, what it was, and what it is now.
    """
    said = [f"{name} {typed(was)}, and not {typed(now)}" for name, was, now in other]
    if len(said) > _SHOWN:
        said[_SHOWN:] = [f"and {len(said) - _SHOWN} more"]
    return "; ".join(said)


def changed(config: Config, name: str, now: Any) -> Config:
    """The same with another value of a knob."""
    section, _, last = name.rpartition(".")
    if not section:
        return config.model_copy(update={last: now})
    inner = getattr(config, section).model_copy(update={last: now})
    return config.model_copy(update={section: inner})


def signature(config: Config) -> str:
    """Eight hexadecimal digits that are equal for experiments that decide the same result.

    Defaults are left out: a knob that is new does not change those of older experiments.
    """
    said = ((n, value(config, n), field) for n, field in knobs() if not is_free(field))
    values = {name: now for name, now, field in said if now != field.default}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
