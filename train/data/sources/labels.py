"""Classes and their numbers, from what a source says of each picture."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from host.errors import DataError, nearest
from host.text import some

_MOST = 1 << 20
_WORD = 2
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?")
_WHOLE = re.compile(r"(-?[0-9]+)\.0*$")  # as a table's column of numbers has it that has gaps
_SPACED = 3
_FIX = "mend the labels; a list or a table may have them in another column: --data.label_column"


@dataclass(frozen=True)
class Said:
    """What is said of a split's pictures.

    Attributes:
        split: what a user calls it.
        values: a number or a name for each.
        name: of a picture, by its number.
    """

    split: str
    values: Sequence[Any]
    name: Callable[[int], str]


def number(
    train: Said, held: Said | None, names: list[str] | None = None
) -> tuple[list[str], list[Tensor]]:
    """Names of the classes, and each split's labels, int64 [N].

    Names are numbered in their order; numbers stand for themselves.

    Args:
        names: of the classes, where the source gives some for its numbers.

    Raises:
        DataError: values are missing, of several kinds, out of range, or of no training picture.
    """
    both = [train] if held is None else [train, held]
    kinds = {kind for said in both for kind in map(_kind, said.values)}
    if len(kinds) != 1 or "" in kinds:
        for said in both:
            strange = [n for n, value in enumerate(said.values) if _kind(value) == ""]
            if strange:
                raise DataError(
                    f"{len(strange):,} of the {said.split} labels are missing, or neither a whole"
                    f" number nor a name: {some(map(said.name, strange))}",
                    _FIX,
                )
        raise DataError("some labels are numbers and some are names", _FIX)
    if names is not None and kinds == {"number"}:
        numbers = [[int(v) for v in said.values] for said in both]
        _check_range(both, numbers, names)
        words = [[names[n] for n in each] for each in numbers]
        _check_learned(both, words, words[0])
    else:
        words = [[_name(v) for v in said.values] for said in both]
        if kinds == {"number"}:
            names = [str(n) for n in sorted({_class(train, v) for v in train.values})]
        else:
            names = sorted(set(words[0]))
            check_names(names, "labels")
            _check_amounts(names)
            _check_single(names)
        places = {name: place for place, name in enumerate(names)}
        _check_learned(both, words, places)
        numbers = [[places[word] for word in each] for each in words]
    _check_learned(
        both, [[names[n] for n in each] for each in numbers], [names[n] for n in numbers[0]]
    )
    return names, [torch.tensor(each, dtype=torch.int64) for each in numbers]


def check_names(names: Iterable[str], what: str) -> None:
    """See that classes differ in more than what is easily mistyped.

    Raises:
        DataError: two differ in blanks, capitals or a .0 alone.
    """
    first: dict[str, str] = {}
    for name in names:
        plain = _WHOLE.sub(r"\1", " ".join(name.split()))
        plain = str(int(plain)) if re.fullmatch("[0-9]{1,18}", plain) else plain
        # Letters of an alphabet are classes of their own: a and A.
        other = first.setdefault(plain if len(plain) < _WORD else plain.casefold(), name)
        if other != name:
            raise DataError(
                f"the {what} {other!r} and {name!r} differ in blanks, capitals, zeros before a"
                " number or a .0 alone",
                "give one class one name",
            )


def _check_amounts(names: Sequence[str]) -> None:
    """Refuse a column that a text says of each picture, and that is no class but an amount."""
    numbers = [_NUMBER.fullmatch(name) for name in names]
    broken = next((name for name in names if "." in name and not _WHOLE.fullmatch(name)), None)
    if all(numbers) and broken is not None:
        raise DataError(
            f"the labels are numbers with fractions, such as {broken}, and not classes",
            "name the column of the classes with --data.label_column; where the numbers are names"
            " of classes, put a letter in front of each",
        )


def _check_single(names: Sequence[str]) -> None:
    """Refuse labels that name several classes at once."""
    known = {*names}
    # A coat may be black white; where many are called so, each is of several.
    spaced = [name for name in names if len(name.split()) > 1 and {*name.split()} <= known]
    for name in names:
        listed = re.fullmatch(r"\[.*['\",].*\]", name)
        parts = {part.strip() for part in re.split("[|;]", name)}
        commas = {part.strip() for part in name.split(",")}
        several = (len(parts) > 1 and known & parts) or (len(commas) > 1 and commas <= known)
        several = several or (len(spaced) >= _SPACED and name in spaced)
        if listed or several:
            raise DataError(
                f"a label names several classes at once: {name}",
                "a picture has one class here: name another column with --data.label_column, or"
                " write one class for each picture",
            )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "name" if value and value.lower() != "nan" else ""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return "number" if whole else ""


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(int(value))


def _class(train: Said, value: Any) -> int:
    """A number that is one of a class.

    Raises:
        DataError: it is none.
    """
    number = int(value)
    if not 0 <= number < _MOST:
        place = next(n for n, v in enumerate(train.values) if v == value)
        raise DataError(
            f"{train.name(place)} has label {number}: classes have numbers from 0 to {_MOST - 1}",
            _FIX,
        )
    return number


def _check_range(both: list[Said], numbers: list[list[int]], names: list[str]) -> None:
    for said, values in zip(both, numbers, strict=True):
        outside = [n for n, v in enumerate(values) if not 0 <= v < len(names)]
        if outside:
            raise DataError(
                f"{len(outside):,} {said.split} labels are outside the {len(names)} classes"
                f" 0 … {len(names) - 1}, such as {values[outside[0]]}:"
                f" {some(map(said.name, outside))}",
                _FIX,
            )


def _check_learned(both: list[Said], words: list[list[str]], learned: Iterable[str]) -> None:
    """Refuse classes that nothing could be learned of."""
    known = set(learned)
    for said, each in zip(both, words, strict=True):
        new = [n for n, word in enumerate(each) if word not in known]
        if new:
            _only(said, new, [each[n] for n in new], sorted(known))


def _only(said: Said, places: list[int], classes: list[str], known: list[str]) -> None:
    different = sorted(set(classes))
    many = len(different) > 1
    raise DataError(
        f"{len(different)} class{'es' * many} of the {said.split} split {'have' if many else 'has'}"
        f" no training picture: {some(different)}"
        f"{nearest(different[0], known)}",
        f"mend the labels where they are wrong; else add some, or remove the {len(places):,}"
        f" {said.split} pictures, such as {said.name(places[0])}",
    )
