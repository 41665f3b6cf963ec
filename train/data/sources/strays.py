"""Pictures that a list names otherwise than by their paths."""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from host.errors import DataError
from train.data.sources import layout
from train.data.sources.rows import Row, is_file
from train.data.sources.tree import HELD_OUT, TRAINING
from train.data.sources.walk import Walk

_FEW = 5  # pictures


def find(rows: dict[str, list[Row]], root: Path, walk: Walk) -> list[str]:
    """Give pictures that a list names without folder or suffix their paths, where each name is
    that of one picture alone.
    """
    there = {*walk.pictures, *walk.bad}
    strayed = []
    for each in rows.values():
        gone = [
            place
            for place, row in enumerate(each)
            if row.alone and row.name not in there and not is_file(root / row.name)
        ]
        # Where some lie as they are named, a missing one is missing.
        if len(gone) == sum(row.alone for row in each):
            strayed += [(each, place) for place in gone]
    by_name: dict[str, list[str]] = defaultdict(list)
    by_number: dict[str, list[str]] = defaultdict(list)
    for path in there if strayed else ():
        name = path.rpartition(os.sep)[2]
        stem = name.rpartition(".")[0] or name
        for word in {name, stem}:
            by_name[word].append(path)
        # A spreadsheet takes the zeros of 007 away.
        if stem.isdecimal() and stem.isascii() and stem != str(int(stem)):
            by_number[str(int(stem))].append(path)
    first, count = "", 0
    for each, place in strayed:
        name = each[place].name.rpartition(os.sep)[2]
        # Labels are of training pictures, where the list does not say otherwise: a test has none.
        held = each[place].split in HELD_OUT
        folder = each[place].name[: -len(name)]  # of the list
        fitting = [
            path
            for path in by_name[name] or by_number[name]
            if path.startswith(folder) and not layout.is_split(path[len(folder) :], not held)
        ]
        if len(fitting) == 1:
            each[place] = replace(each[place], name=fitting[0])
            count, first = count + 1, first or f"{name} is {fitting[0]}"
    return [f"{count:,} pictures were found by their names: {first}"] if count else []


def mended(named: str, walk: Walk) -> str:
    """How the paths of a list are mended, where none leads to a picture."""
    alike = (Path(named).name, Path(named).stem)
    found = [n for n in walk.pictures if Path(n).name in alike or Path(n).stem in alike]
    if not found and _written(named) in map(_written, walk.pictures):
        return (
            "the same names are here with accents written in another way (Unicode's NFC and NFD, as"
            " between Linux and macOS): write the list's as the files have them, with python3 -c"
            " 'import sys, unicodedata as u; print(end=u.normalize(\"NFC\", sys.stdin.read()))'"
            " <LIST >NEW   # or NFD"
        )
    if not found:
        return "mend their paths, or take the list away"
    which = f" (and {found[1]} is called so, too)" if found[1:] else ""
    return (
        f"write paths from the list's folder, with what they end in: {found[0]}{which}, not {named}"
    )


def check_counted_alike(root: Path, rows: dict[str, list[Row]], walk: Walk) -> None:
    """See that a list whose pictures have numbers does not count from 1 where the files count from
    0, or the other way round: all but the last would be found, each with its neighbour's label.
    """
    named = _numbers(row.name for each in rows.values() for row in each)
    there = _numbers({*walk.pictures, *walk.bad})
    if min(len(named), len(there)) < _FEW or named == there:
        return
    first, last = min(there), max(there)
    for by, extra, unnamed in ((1, last + 1, first), (-1, first - 1, last)):
        if named == {number + by for number in there}:
            raise DataError(
                f"the list in {root} numbers its pictures {first + by} to {last + by}, and the"
                f" files {first} to {last}: each label may be its neighbour's",
                "write the files' own names into the list; where the others are right, take picture"
                f" {extra} out of the list and {unnamed} out of the folder",
            )


def _numbers(names: Iterable[str]) -> set[int]:
    """Those that pictures are called by; none where one is called otherwise."""
    stems = {Path(name).stem for name in names}
    return {int(stem) for stem in stems} if all(map(str.isdecimal, stems)) else set()


def _written(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def check_undivided(root: Path, rows: dict[str, list[Row]]) -> None:
    """See that a list that says no split does not name pictures of several."""
    tops = sorted({row.name.partition(os.sep)[0] for row in rows.get("", ()) if not row.alone})
    train, held = ([n for n in tops if n.lower() in words] for words in (TRAINING, HELD_OUT))
    if train and held:
        raise DataError(
            f"the list in {root} says no split, and names pictures in {train[0]}/ and {held[0]}/",
            "add a column split; or take the list away, if their folders are the classes",
        )
