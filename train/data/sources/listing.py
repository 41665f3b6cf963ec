"""Lists of pictures and their labels: CSV, TSV or JSON Lines, with a line of column names.

Either a list for each split (train.csv and validation.csv, or metadata.csv in each split's folder),
or one, with a column `split` if it likes. Paths follow from the folder that a list lies in.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import regular
from host.errors import DataError, first_line
from train.config import Data
from train.data.pictures import Found, Labelled, halves, some
from train.data.sources import labels
from train.data.sources.files import files
from train.data.sources.tree import HELD_OUT, TRAINING, Walk, entries, is_folder

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_NAMES = ("metadata", "labels", "annotations", "data", "index")
_PICTURE = (
    *("file_name", "filename", "file", "filepath", "file_path", "path"),
    *("image_path", "image", "img"),
)
_LABEL = ("label", "class", "target", "category", "label_name", "class_name", "labels", "species")
_SPLIT = ("split", "subset", "partition")
_LINE = 1 << 20  # characters of a field


@dataclass(frozen=True)
class Row:
    """A line of a list: where it stands, the picture's name from the root, its label and split."""

    place: str
    name: str
    label: Any
    split: str


def lists(root: Path, config: Data) -> dict[str, list[Path]]:
    """A folder's lists by split: "" for one that says the split itself, or says none.

    One without labels, of captions for example, is none.
    """
    if root.is_file():
        return {"": [root]}
    found: dict[str, list[Path]] = {}
    for entry in entries(root):
        path = Path(entry.path)
        if _is_list(path) and _is_file(path):
            stem = path.stem.lower()
            split = _split(stem)
            if split or (stem in _NAMES and _labelled(path, config)):
                found.setdefault(split, []).append(path)
        elif is_folder(entry) and _split(entry.name.lower()):
            inside = [Path(e.path) for e in entries(path) if _is_list(Path(e.path))]
            of_it = [p for p in inside if p.stem.lower() in _NAMES and _labelled(p, config)]
            if of_it:
                found.setdefault(_split(entry.name.lower()), []).extend(of_it)
    return found


def _is_list(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _labelled(path: Path, config: Data) -> bool:
    if config.label_column is not None:
        return True
    try:
        with regular.opened(path) as file:
            head = _text(file.read(_LINE), errors="replace").lstrip().split("\n", 1)[0]
    except OSError:
        return True  # it is told when it is read
    return any(re.search(rf"\b{word}\b", head, re.IGNORECASE) for word in _LABEL)


def _text(data: bytes, errors: str = "strict") -> str:
    """Of a list in UTF-8, or in UTF-16 as spreadsheets write it."""
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8-sig", errors)


def _split(word: str) -> str:
    if word in TRAINING:
        return "train"
    return word if word in HELD_OUT else ""


def splits(config: Data, root: Path, found: dict[str, list[Path]]) -> Found:
    """Training and validation split of the pictures that these lists name.

    Raises:
        DataError: a list cannot be read, names what it may not, or contradicts itself.
    """
    for several in found.values():
        if len(several) > 1:
            raise DataError(
                f"{root} has several lists of one split: {some(several, root)}", "keep one of them"
            )
    if "" in found and len(found) > 1:
        other = next(path[0] for split, path in found.items() if split)
        raise DataError(
            f"{root} has {found[''][0].name} and {other.relative_to(root)}, which may name the same"
            " pictures",
            "keep a list of all, with a column `split`, or one for each split",
        )
    folder = root.parent if root.is_file() else root
    rows: dict[str, list[Row]] = {}
    for split, (path,) in found.items():
        for row in _rows(path, folder, split, config):
            rows.setdefault(row.split, []).append(row)
    walk = Walk(folder)
    walk.into("")
    return _found(config, folder, rows, walk)


def _found(config: Data, root: Path, rows: dict[str, list[Row]], walk: Walk) -> Found:
    held_name = next((name for name in HELD_OUT if name in rows), None)
    if "" in rows and len(rows) > 1:
        raise DataError(
            f"{len(rows['']):,} rows have no split: {some(r.place for r in rows[''])}",
            "give each one of train, validation, test",
        )
    train_name = "" if "" in rows else "train"
    if train_name not in rows:
        raise DataError(f"the lists in {root} name no training pictures", "add some")
    left_out = {name: why for name, why in walk.left_out.items() if not _is_list(Path(name))}
    left_out |= {
        name: f"validation is {held_name}" for name in rows if name not in (train_name, held_name)
    }
    named = {row.name for split in rows.values() for row in split}
    left_out |= {name: "in no list" for name in walk.pictures if name not in named}
    bad = {name: why for name, why in walk.bad.items() if name in named}
    chosen = {
        split: _once(rows[split], left_out)
        for split in (train_name, held_name)
        if split is not None
    }
    there = {*walk.pictures, *walk.bad}
    for split, found in chosen.items():
        for row in found:
            # In a hidden folder, or elsewhere where that is allowed.
            if row.name not in there and not _is_file(root / row.name):
                bad[row.name] = f"no such picture, but {row.place} names it"
        chosen[split] = [row for row in found if row.name not in bad]
    _compare_folders(chosen)
    said = [
        labels.Said(title, [r.label for r in chosen[split]], lambda n, s=split: chosen[s][n].place)  # type: ignore[misc]
        for title, split in (("training", train_name), ("validation", held_name))
        if split is not None
    ]
    if bad and not all(chosen.values()):
        raise DataError(
            f"there are no such pictures in {root}: {some(bad)}",
            "mend their paths, or take the list away",
        )
    classes, numbers = labels.number(said[0], said[1] if len(said) > 1 else None)
    made = [
        Labelled(files(root, [row.name for row in rows_of]), labels_of)
        for rows_of, labels_of in zip(chosen.values(), numbers, strict=True)
    ]
    if len(made) == 1:
        made = [*halves(made[0], config.holdout)]
    return Found(made[0], made[1], classes, left_out, bad)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _compare_folders(chosen: dict[str, list[Row]]) -> None:
    """See that a picture does not lie in the folder of another class than its list says."""
    rows = [row for split in chosen.values() for row in split]
    classes = {row.label for row in rows}
    torn = [
        row.place
        for row in rows
        if {*Path(row.name).parts[:-1]} & classes and row.label not in Path(row.name).parts[:-1]
    ]
    if torn:
        raise DataError(
            f"{len(torn):,} rows give a picture another class than the folder it lies in:"
            f" {some(torn)}",
            "take the list away, or the pictures out of class folders",
        )


def _once(rows: list[Row], left_out: dict[str, str]) -> list[Row]:
    """Each picture once."""
    first: dict[str, Row] = {}
    torn = []
    for row in rows:
        earlier = first.setdefault(row.name, row)
        if earlier.label != row.label:
            torn.append(row.place)
        elif earlier is not row:
            left_out[f"{row.place}: {row.name}"] = "listed twice"
    if torn:
        raise DataError(
            f"{len(torn):,} rows give a picture another label than an earlier row: {some(torn)}",
            "keep one row for each picture",
        )
    return list(first.values())


def _rows(path: Path, root: Path, split: str, config: Data) -> Iterator[Row]:
    try:
        text = _text(regular.read(path))
        read = _json_lines if path.suffix.lower() in (".jsonl", ".ndjson") else _table
        rows = list(read(text))
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise DataError(f"cannot read {path}: {first_line(error)}", "mend it") from error
    if not rows:
        raise DataError(f"{path} has no rows", "fill it, or remove it")
    known = list(rows[0][1])
    picture = _column(path, known, config.image_column, _PICTURE, "image_column")
    label = _column(path, known, config.label_column, _LABEL, "label_column")
    divided = None if split else next((n for n in known if n.lower() in _SPLIT), None)
    whole = _whole([row.get(label) for _, row in rows])
    for line, row in rows:
        place = f"{path.name}:{line}"
        name = row.get(picture)
        if not isinstance(name, str) or not name:
            raise DataError(f"{place} names no picture in its column {picture}", "mend the row")
        said = str(row.get(divided) or "").strip().lower() if divided else split
        if divided and said and not _split(said):
            raise DataError(f"{place} is of the split {said}", f"use train, {', '.join(HELD_OUT)}")
        value = row.get(label)
        if not isinstance(value, (str, int, float, type(None))):
            raise DataError(f"{place} has a label that is no number and no name", "mend the row")
        where = _inside(path.parent, root, name, place, outside=config.outside)
        yield Row(place, where, int(value) if whole and value else value, _split(said))


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
    if "\\" in name and not _is_file(path):
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


def _column(
    path: Path, known: list[str], wanted: str | None, usual: tuple[str, ...], knob: str
) -> str:
    found = [name for name in known if name == wanted]
    if wanted is None:
        found = [name for word in usual for name in known if name.lower() == word][:1]
    if not found:
        raise DataError(
            f"{path} has no column {wanted or usual[0]}; its columns: {', '.join(known)}",
            f"name one with --data.{knob}",
        )
    return found[0]


def _table(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    csv.field_size_limit(_LINE)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
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
            row = json.loads(said)
            if not isinstance(row, dict):
                raise ValueError(f"line {line} is no mapping")
            yield line, row
