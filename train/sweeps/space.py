"""What a sweep varies: knobs, and the values that each may have."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from host.errors import UsageError
from train.config import knobs
from train.experiment import meant
from train.knobs import is_free

_HOW = "write KNOB=VALUE,VALUE or KNOB=LOW..HIGH or KNOB=log:LOW..HIGH"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SPAN = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_EXACT = 1 << 53  # whole numbers below are told apart
_DIGITS = 6  # of a number that is drawn: a command is to be read


@dataclass(frozen=True)
class Choice:
    """A knob with a few values, as they are typed."""

    knob: str
    values: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def shares(self) -> list[float]:
        """Where each of them is."""
        return [(place + 0.5) / self.count for place in range(self.count)]

    def value(self, place: int) -> str:
        """One of them, counted from 0."""
        return self.values[place]

    def at(self, share: float) -> str:
        """The value so far along, from 0 to 1."""
        return self.values[min(int(share * self.count), self.count - 1)]


@dataclass(frozen=True)
class Span:
    """A knob with all numbers from `low` to `high`.

    Attributes:
        log: whether each factor is as likely as any other, and not each difference.
        whole: whether they are whole numbers.
    """

    knob: str
    low: float
    high: float
    log: bool
    whole: bool

    @property
    def count(self) -> int:
        """How many whole numbers there are."""
        return int(self.high - self.low) + 1

    @property
    def shares(self) -> list[float]:
        """Where its ends are."""
        return [0.0, 1.0]

    def value(self, place: int) -> str:
        """One of the whole numbers, counted from 0."""
        return str(int(self.low) + place)

    def at(self, share: float) -> str:
        """The value so far along, from 0 to 1."""
        low, high = self.low, self.high + self.whole  # each whole number has a part of its own
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        if self.whole:
            return str(min(int(self.high), math.floor(value)))
        return repr(min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}"))))


Axis = Choice | Span


def axes(words: Sequence[str]) -> list[Axis]:
    """What `--over` says.

    Raises:
        UsageError: a knob is unknown or decides nothing, or its values make no sense.
    """
    found = [_axis(word) for word in words]
    names = [axis.knob for axis in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--over names {name} twice", "give all of its values at once")
    return found


def _axis(word: str) -> Axis:
    name, equals, text = word.partition("=")
    fields = dict(knobs())
    if name not in fields:
        near = meant(f"--{name.lstrip('-')}", [f"--{known}" for known in fields]).replace("--", "")
        raise UsageError(f"--over {word}: no knob {name}{near}", _HOW)
    if not equals or not text:
        raise UsageError(f"--over {word}: no values", _HOW)
    if is_free(fields[name]):
        raise UsageError(
            f"--over {word}: {name} decides nothing of the result",
            "vary another knob; `make tune` measures what is fast",
        )
    span = _SPAN.fullmatch(text)
    return _span(word, name, span, fields[name]) if span else _choice(word, name, text)


def _span(word: str, name: str, span: re.Match[str], field: FieldInfo) -> Span:
    kind = _number(field.annotation)
    if kind is None:
        raise UsageError(f"--over {word}: {name} is no number", "list its values: KNOB=VALUE,VALUE")
    log, low, high = span[1] is not None, float(span[2]), float(span[3])
    if not low < high:
        raise UsageError(f"--over {word}: {span[2]} is not below {span[3]}", _HOW)
    if log and low <= 0:
        raise UsageError(f"--over {word}: the logarithm needs more than 0", "begin above 0")
    if kind is int and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"--over {word}: {name} is a whole number", "begin and end with one")
    if kind is int and max(-low, high) >= _EXACT:
        raise UsageError(f"--over {word}: numbers so large are not told apart", "list them")
    return Span(name, low, high, log, kind is int)


def _choice(word: str, name: str, text: str) -> Choice:
    values = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", text))
    if "" in values or len(set(values)) < len(values):
        what, fix = ("an empty value", _HOW) if "" in values else ("a value twice", "take one away")
        raise UsageError(f"--over {word}: {what}", fix)
    if len(values) == 1:
        raise UsageError(
            f"--over {word}: one value varies nothing", f"say --{name} {text}, or name more values"
        )
    return Choice(name, values)


def _number(kind: Any) -> type | None:
    """Int or float, where a knob's type is that, perhaps with limits, or nothing; else None."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        inner = {_number(each) for each in get_args(kind) if each is not NoneType}
        return inner.pop() if len(inner) == 1 else None
    return kind if kind in (int, float) else None


def nested(base: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Overrides of an experiment with these values over others, by section as a file has them."""
    made = {name: dict(inner) if isinstance(inner, dict) else inner for name, inner in base.items()}
    for knob, text in values.items():
        section, _, name = knob.rpartition(".")
        (made.setdefault(section, {}) if section else made)[name] = _value(knob, text)
    return made


def _value(knob: str, text: str) -> Any:
    """A value as the command line takes it: text, nothing, or a list."""
    if text == "null":
        return None
    try:
        return yaml.safe_load(text) if text.startswith("[") else text
    except yaml.YAMLError as error:
        raise UsageError(f"{knob}={text} is no list", "write [value, value]") from error
