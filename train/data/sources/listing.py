"""Lists of pictures and their labels: CSV, TSV or JSON Lines, with a line of column names.

Either a list for each split (train.csv and validation.csv, or metadata.csv in each split's folder),
or one, with a column `split` if it likes. Paths follow from the folder that a list lies in.
"""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from host import regular
from host.errors import DataError
from host.text import some
from train.config import Data
from train.data.pictures import Found, Labelled, two_splits
from train.data.sources import columns, labels, strays
from train.data.sources.columns import LABEL, PATH, PICTURE, SPLIT
from train.data.sources.files import files
from train.data.sources.rows import LINE, Row, first_rows, is_file, rows_of, split_of, text_of
from train.data.sources.tree import HELD_OUT
from train.data.sources.walk import LISTS, Walk, entries, has_suffix, is_folder

# What a list says of a picture that is no class of it.
_ELSE = (
    *("", "unnamed: 0", "text", "caption", "captions", "prompt", "description", "title", "url"),
    *("width", "height", "size", "bytes", "license", "author", "date", "format", "mode", "source"),
    *("alt_text", "id", "hash", "md5", "camera", "channels", "fold"),
)
_UNLISTED = "in no list"
_NAMES = ("metadata", "labels", "annotations", "data", "index")


def lists(root: Path, config: Data) -> dict[str, list[Path]]:
    """A folder's lists by split: "" for one that says the split itself, or says none.

    One without labels, of captions for example, is none.
    """
    if root.is_file():
        return {"": [root]}
    found: dict[str, list[Path]] = {}
    for entry in entries(root):
        path = Path(entry.path)
        if _is_list(path) and is_file(path):
            stem = path.stem.lower()
            split = split_of(stem)
            if split or (stem in _NAMES and _labelled(path, config)):
                found.setdefault(split, []).append(path)
        elif is_folder(entry) and split_of(entry.name.lower()):
            inside = [Path(e.path) for e in entries(path) if _is_list(Path(e.path))]
            of_it = [p for p in inside if p.stem.lower() in _NAMES and _labelled(p, config)]
            if of_it:
                found.setdefault(split_of(entry.name.lower()), []).extend(of_it)
    return found


def _is_list(path: Path) -> bool:
    return path.suffix.lower() in LISTS and not path.name.startswith(".")


def _labelled(path: Path, config: Data) -> bool:
    if config.label_column is not None:
        return True
    try:
        with regular.opened(path) as file:
            text = text_of(file.read(LINE), errors="replace").lstrip()
    except OSError:
        return True  # it is told when it is read
    head = text.split("\n", 1)[0]
    if any(re.search(rf"\b{word}\b", head, re.IGNORECASE) for word in LABEL):
        return True
    return _classified(first_rows(path, text))


def _classified(rows: list[dict[str, Any]]) -> bool:
    """Whether these rows of a list name pictures and have a column that may be their class: few
    values, each of several pictures. Whoever reads the list asks for its name.
    """
    names = list(rows[0]) if rows else []
    paths = [n for n in names if n.lower() in PATH or has_suffix(str(rows[0][n]))]
    if not any(name.lower() in PICTURE for name in paths):
        return False
    others = [name for name in names if name.lower() not in (*PICTURE, *SPLIT, *_ELSE)]
    for name in others:
        values = Counter(str(row.get(name)) for row in rows)
        if 1 < len(values) <= len(rows) / 2:
            return True
    return False


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
    doubts: list[str] = []
    for split, (path,) in found.items():
        for row in rows_of(path, folder, split, config, doubts):
            rows.setdefault(row.split, []).append(row)
    walk = Walk(folder)
    walk.into("")
    groups = {split: [row.groups for row in each] for split, each in rows.items()}
    doubts += columns.torn(groups, len({row.label for each in rows.values() for row in each}))
    doubts += strays.find(rows, folder, walk)
    strays.check_undivided(folder, rows)
    strays.check_counted_alike(folder, rows, walk)
    made = _found(config, folder, rows, walk)
    unlisted = sum(why == _UNLISTED for why in made.left_out.values())
    if unlisted:
        doubts.append(f"in no list, and left out: {unlisted:,} of the pictures in {folder}")
    return replace(made, doubts=doubts)


def _found(config: Data, root: Path, rows: dict[str, list[Row]], walk: Walk) -> Found:
    held_name = next((name for name in HELD_OUT if name in rows), None)
    if "" in rows and len(rows) > 1:
        raise DataError(
            f"{len(rows['']):,} rows have no split: {some(r.place for r in rows[''])}",
            "give each one of train, validation, test",
        )
    train_name = "" if "" in rows else "train"
    if train_name not in rows:
        raise DataError(
            f"the lists in {root} name no training pictures",
            "add some; to measure all of them, take the split away and add --all to make eval",
        )
    left_out = {name: why for name, why in walk.left_out.items() if not _is_list(Path(name))}
    left_out |= {
        f"{name}, {len(split):,} picture{'s' * (len(split) > 1)}": (
            f"not used: validation is {held_name}"
        )
        for name, split in rows.items()
        if name not in (train_name, held_name)
    }
    named = {row.name for split in rows.values() for row in split}
    left_out |= {name: _UNLISTED for name in walk.pictures if name not in named}
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
            if row.name not in there and not is_file(root / row.name):
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
            strays.mended(next(iter(bad)), walk),
        )
    classes, numbers = labels.number(said[0], said[1] if len(said) > 1 else None)
    made = [
        Labelled(files(root, [row.name for row in split_rows]), split_labels)
        for split_rows, split_labels in zip(chosen.values(), numbers, strict=True)
    ]
    return Found(*two_splits(made, config), classes, left_out, bad, both=len(made) > 1)


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
            f"{len(torn):,} row{_s(torn)} a picture another class than the folder it lies in:"
            f" {some(torn)}",
            "take the list away, or the pictures out of class folders",
        )


def _s(rows: list[str]) -> str:
    return "s give" if len(rows) > 1 else " gives"


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
            f"{len(torn):,} row{_s(torn)} a picture another label than one before: {some(torn)}",
            "keep one row for each picture",
        )
    return list(first.values())
