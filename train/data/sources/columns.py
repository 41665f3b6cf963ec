"""Which columns of a list are read, and what the others may mean to whoever wrote them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.errors import DataError
from host.text import some
from train.config import Data
from train.data.sources.layout import NOBODY
from train.data.sources.tree import HELD_OUT, TRAINING
from train.data.sources.walk import has_suffix

PATH = (
    *("file_name", "filename", "file", "filepath", "file_path", "path"),
    *("image_path", "image", "img"),
)
PICTURE = (*PATH, "image_name", "image_file", "image_id", "img_path", "fname")
LABEL = ("label", "class", "target", "category", "label_name", "class_name", "labels", "species")
SPLIT = ("split", "subset", "partition")
# What other trainers divide by.
_DIVIDES = re.compile(r"(is_?)?(train|test|val|valid|validation)(_?set)?|k?_?folds?", re.IGNORECASE)
# Of whom or what several pictures are.
_GROUP = re.compile(
    r"(animal|camera|case|clip|collector|donor|group|individual|lesion|location|participant|patient"
    r"|person|photographer|plant|scene|sequence|session|site|slide|specimen|study|subject|user"
    r"|video)([ _-]?id)?",
    re.IGNORECASE,
)
_TRAINED = ("trn", "tr")
# Others than those which a column split may say; FER2013 has the last two.
_WORDS = {*TRAINING, *HELD_OUT, *_TRAINED, "va", "tst", "te", "publictest", "privatetest"}
_LEAVES_OUT = re.compile(
    r"(to_?)?(exclude|excluded|ignore|ignored|skip|drop|remove|bad|corrupt|corrupted|use|keep)",
    re.IGNORECASE,
)
_WEIGHS = re.compile(r"(sample|loss|class)[ _-]?weights?|weights?", re.IGNORECASE)
_BOX = {"xmin", "ymin", "xmax", "ymax", "bbox", "x_min", "y_min", "x_max", "y_max"}
_BITS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_SHOWN = 12  # columns, in a message

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Columns:
    """The names of those that are read; `split` is None where no column divides."""

    picture: str
    label: str
    split: str | None


def read(path: Path, rows: Rows, split: str, config: Data) -> Columns:
    """Which they are.

    Args:
        split: what all rows are of; "" where each may say it.

    Raises:
        DataError: one is missing, or there are several that may be meant.
    """
    known = list(rows[0])
    first = next((name for name in known[:3] if has_suffix(name)), None)
    if first is not None:
        away = "; pictures are read from files: download them, and write where they lie"
        raise DataError(
            f"{path} has no line of column names: it begins with {first}",
            f"write file_name,label (and so on) as its first line{away * ('://' in first)}",
        )
    usual: tuple[str, ...] = PICTURE
    if len(known) == 2 and any(name.lower() in LABEL for name in known):
        usual = (*PICTURE, "id")  # which is a row's number where there is more to say of it
    named = config.image_column is not None or any(name.lower() in usual for name in known)
    if not named and any(name.lower().startswith("pixel") for name in known):
        raise DataError(
            f"{path} has pixels in its columns, and no names of pictures",
            "they come from a function: --data.source my_package.data:tables (docs/EXTENDING.md)",
        )
    neither = config.label_column is None and not any(name.lower() in LABEL for name in known)
    knob = "image_column" + " and --data.label_column" * neither
    picture = _column(path, known, config.image_column, usual, knob, split=split)
    _check_hot(path, rows, [n for n in known if n != picture], config.label_column)
    label = _column(path, known, config.label_column, LABEL, "label_column", split=split)
    if config.label_column is None:
        _check_one(path, rows, label)
    divided = None if split else next((n for n in known if n.lower() in SPLIT), None)
    others = [name for name in known if name not in (picture, label)]
    dividing = (n for n in others if _DIVIDES.fullmatch(n) or _divides(rows, n))
    unknown = None if divided else next(dividing, None)
    # In a list of one split it may say the same of all.
    if unknown is not None and not (split and len({str(row.get(unknown)) for row in rows}) == 1):
        raise DataError(
            f"{path} has a column {unknown}, which seems to divide the pictures, and is not read",
            "write a column split in its place, of train and validation; or take it away, and a"
            " share of all is held out (data.holdout)",
        )
    return Columns(picture, label, divided)


def _divides(rows: Rows, name: str) -> bool:
    """Whether a column says of each row of which split it is, by its words."""
    words = {str(row.get(name) or "").strip().lower() for row in rows} - {""}
    # Another language may have the one word and not the other: Training, Validierung.
    few = len(words) <= 3 and not words.isdisjoint(TRAINING)
    return len(words) > 1 and (few or (words <= _WORDS and not words.isdisjoint(_TRAINED)))


def doubts(path: Path, rows: Rows, read: Columns, split: str) -> Iterator[str]:
    """A line for each other column that may mean something."""
    others = [n for n in rows[0] if n not in (read.picture, read.label, read.split)]
    classes = len({str(row.get(read.label)) for row in rows})
    for name in filter(_GROUP.fullmatch, [] if split or read.split else others):
        if classes < len({str(row.get(name)) for row in rows}) < len(rows):
            yield (
                f"{path.name} has a column {name}: pictures of the same one may be in training and"
                " in validation, which flatters every figure; a column split keeps them apart"
            )
    for name in filter(_LEAVES_OUT.fullmatch, others):
        if len({str(row.get(name)) for row in rows}) > 1:
            yield f"{path.name} has a column {name}, which is not read: all rows are trained on"
    for name in filter(_WEIGHS.fullmatch, others):
        if len({str(row.get(name)) for row in rows}) > 1:
            yield f"{path.name} has a column {name}, which is not read: each row counts alike"
    unread = [] if split or read.split else [n for n in others if _could_divide(rows, n)]
    if unread:
        yield (
            f"{path.name} has a column {unread[0]}, which is not read, and could divide the"
            " pictures: if it does, call it split, and its words train and validation; else a share"
            " is held out (data.holdout)"
        )
    if any(name.lower() in _BOX for name in others):
        yield f"{path.name} has boxes, which are not read: whole pictures are trained on"
    nobody = {str(row.get(read.label)) for row in rows} - {""}
    odd = sorted(name for name in nobody if name.strip().lower() in NOBODY)
    if odd:
        yield (
            f"classes of pictures that nobody has labelled, by their names: {some(odd)}; take their"
            " rows out of the list"
        )


def _could_divide(rows: Rows, name: str) -> bool:
    """Whether a column has two or three words, and one of them for most of the rows."""
    counts = Counter(str(row.get(name)) for row in rows)
    most = counts.most_common(1)[0][1]
    return 1 < len(counts) <= 3 and 0.6 * len(rows) <= most <= 0.95 * len(rows)


def grouping(row: Mapping[str, Any], read: Columns) -> list[str]:
    """The columns that may say of whom or what a picture is."""
    return [n for n in row if _GROUP.fullmatch(n) and n not in (read.picture, read.label)]


def torn(splits: Mapping[str, Iterable[Mapping[str, str]]], classes: int) -> Iterator[str]:
    """A line for each column whose values, patients and the like, are in training and elsewhere.

    Args:
        splits: what each row says in such columns, by the name of its split.
        classes: how many there are: a column with no more values may say them again.
    """
    found: dict[str, dict[str, set[bool]]] = defaultdict(lambda: defaultdict(set))
    for split, rows in splits.items():
        for row in rows:
            for name, value in row.items():
                found[name][value].add(split in TRAINING)
    for name, values in found.items():
        both = [value for value, places in values.items() if len(places) > 1]
        if both and len(values) > classes:
            yield (
                f"{len(both):,} of {len(values):,} values of the column {name} are in training and"
                f" in another split; where they mean the same, every figure is flattered:"
                f" {some(both)}"
            )


def _column(
    path: Path,
    known: list[str],
    wanted: str | None,
    usual: tuple[str, ...],
    knob: str,
    *,
    split: str,
) -> str:
    found = [name for name in known if name == wanted]
    if wanted is None:
        found = [name for word in usual for name in known if name.lower() == word][:1]
    if found:
        return found[0]
    fix = f"name {'them' if ' ' in knob else 'one'} with --data.{knob}"
    fix += ", or put the list elsewhere, if it is not meant" * (wanted is None)
    if split in HELD_OUT:
        fix += f"; where the {split} split has no labels, name the other list: --data.root LIST"
    more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    shown = f"{', '.join(known[:_SHOWN])}{more}"
    raise DataError(f"{path} has no column {wanted or usual[0]}; its columns: {shown}", fix)


def _check_hot(path: Path, rows: Rows, others: list[str], asked: str | None) -> None:
    """Refuse a list with a column of 0 and 1 for each class, also where one of them is asked for:
    it would be that class and all others.
    """
    if asked is None and any(n.lower() in LABEL for n in others):
        return
    hot = [n for n in others if all(_bit(row, n) is not None for row in rows)]
    # What has no 1 may be no class; two are one, and its contrary.
    several = sum(any(_bit(row, n) for row in rows) for n in hot) > 2
    if asked is not None and not (asked in hot and several):
        return
    if len(hot) > 1 and all(sum(_bit(row, n) or 0 for n in hot) == 1 for row in rows):
        raise DataError(
            f"{path} has a column of 0 and 1 for each class: {some(hot)}",
            "write one column, label, with the name of the one that is 1"
            + f"; or take the others out, for {asked} against all others" * (asked is not None),
        )


def _bit(row: Mapping[str, Any], name: str) -> int | None:
    return _BITS.get(str(row.get(name)).strip().lower())


def _check_one(path: Path, rows: Rows, label: str) -> None:
    """Refuse a list in which another column may as well be the classes, and says otherwise."""
    for other in rows[0]:
        if other == label or other.lower() not in LABEL:
            continue
        pairs = {(str(row.get(label)), str(row.get(other))) for row in rows}
        if not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
            raise DataError(
                f"{path} has two columns that may be the classes, {label} and {other}",
                f"name one with --data.label_column {label}",
            )
