"""Lines of a list of pictures: CSV, TSV or JSON Lines; each names a picture and its label."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host import regular
from host.errors import DataError, first_line
from train.config import Data
from train.data.sources import columns
from train.data.sources.layout import NOBODY
from train.data.sources.tree import HELD_OUT, TRAINING

LINE = 1 << 20  # characters of a field


@dataclass(frozen=True)
class Row:
    """A line of a list.

    Attributes:
        place: where it stands.
        name: the picture's, from the root.
        alone: whether the list names it without a folder.
        groups: of whom or what it is, by the columns that say it.
    """

    place: str
    name: str
    label: Any
    split: str
    alone: bool = False
    groups: dict[str, str] = field(default_factory=dict)


def text_of(data: bytes, errors: str = "strict") -> str:
    """Of a list in UTF-8, or in UTF-16 as spreadsheets write it."""
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8-sig", errors)


def split_of(word: str) -> str:
    """The split that a word names; "" where it names none."""
    if word in TRAINING:
        return "train"
    return word if word in HELD_OUT else ""


def is_file(path: Path) -> bool:
    """Whether it is a regular file, or a link to one."""
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def rows_of(path: Path, root: Path, split: str, config: Data, doubts: list[str]) -> Iterator[Row]:
    """Its rows.

    Args:
        root: what pictures' names follow from.
        split: what all rows are of; "" where each may say it.
        doubts: is given what a person should look at.

    Raises:
        DataError: it cannot be read, or a row names what it may not, or nothing.
    """
    try:
        text = text_of(regular.read(path))
        rows = list(_reader(path)(text))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not in UTF-8: {first_line(error)}",
            f"save it so: iconv -f latin1 -t utf-8 {path} >NEW",
        ) from error
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise DataError(f"cannot read {path}: {first_line(error)}", "mend it") from error
    if not rows:
        raise DataError(f"{path} has no rows", "fill it, or remove it")
    told = [row for _, row in rows]
    named = columns.read(path, told, split, config)
    doubts += columns.doubts(path, told, named, split)
    picture, label, divided = named.picture, named.label, named.split
    grouping = columns.grouping(told[0], named)
    whole = _whole([row.get(label) for _, row in rows])
    for line, row in rows:
        place = f"{path.name}:{line}"
        name = row.get(picture)
        if not isinstance(name, str) or not name:
            raise DataError(f"{place} names no picture in its column {picture}", "mend the row")
        if re.match(r"[a-z0-9]{2,8}://", name):
            raise DataError(
                f"{place} names an address, {name[:80]}",
                "pictures are read from files: download them, and write where they lie",
            )
        said = str(row.get(divided) or "").strip().lower() if divided else split
        if divided and said and not split_of(said):
            raise DataError(
                f"{place} is of the split {said}", f"use {', '.join((*TRAINING, *HELD_OUT))}"
            )
        value = row.get(label)
        if not isinstance(value, (str, int, float, type(None))):
            raise DataError(f"{place} has a label that is no number and no name", "mend the row")
        where = _inside(path.parent, root, name, place, outside=config.outside)
        said_label = int(value) if whole and value else value
        yield Row(
            place,
            where,
            said_label,
            split_of(said),
            alone=not re.search(r"[/\\]", name),
            groups={name: str(row[name]) for name in grouping if not _says_nothing(row.get(name))},
        )


def _says_nothing(value: Any) -> bool:
    return value is None or str(value).strip().lower() in {*NOBODY, "none", "unknown"}


def first_rows(path: Path, text: str) -> list[dict[str, Any]]:
    """The rows of the beginning of a list's text, up to the first that cannot be read."""
    found: list[dict[str, Any]] = []
    with suppress(ValueError, csv.Error, RecursionError):
        found.extend(row for _, row in _reader(path)(text))
    return found


def _reader(path: Path) -> Callable[[str], Iterator[tuple[int, dict[str, Any]]]]:
    return _json_lines if path.suffix.lower() in (".jsonl", ".ndjson") else _table


def _whole(values: list[Any]) -> bool:
    """Whether all are whole numbers, written as text; 007 is a name."""
    return all(isinstance(v, str) and (not v or str_is_number(v)) for v in values)


def str_is_number(text: str) -> bool:
    """Whether a text is how a whole number is written."""
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None and str(int(text)) == text


def _inside(folder: Path, root: Path, name: str, place: str, *, outside: bool) -> str:
    """A picture's name from the root.

    Raises:
        DataError: it lies elsewhere.
    """
    path = folder / name
    if "\\" in name and not is_file(path):
        path = folder / name.replace("\\", "/")
    plain = os.path.normpath(path.absolute())
    roots = [os.path.normpath(each) for each in (root.absolute(), root.resolve())]
    inside = min((os.path.relpath(plain, each) for each in roots), key=len)
    if inside.startswith("..") and not outside:
        raise DataError(
            f"{place} names {name}, which lies outside of {root}",
            "take it away; if you trust the list, add --data.outside true",
        )
    return inside


def _table(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    csv.field_size_limit(LINE)
    rows = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    names = rows.fieldnames or []
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"line {rows.line_num} has not as many fields as the first line")
        yield rows.line_num, row


def _json_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, said in enumerate(text.split("\n"), 1):
        if said.strip():
            try:
                row = json.loads(said)
            except ValueError as error:
                raise ValueError(f"line {line}: {first_line(error)}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {line} is no mapping")
            yield line, row
