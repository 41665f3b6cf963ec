"""What a layout of class folders says that whoever made it may not have meant."""

import csv
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from host.errors import DataError
from host.text import some
from train.data.sources import elsewhere
from train.data.sources.walk import LISTS, entries

# Folders that stand beside pictures, and are mostly no classes.
_BESIDE = {
    *("annotation", "annotations", "augmented", "bboxes", "depth", "ground_truth", "groundtruth"),
    *("image", "images", "imgs", "img", "jpegimages", "labels", "mask", "masks", "meta"),
    *("metadata", "segmentation", "segmentations", "thumbnails", "thumbs", "trimaps"),
}
# What is put in the place of a class that nobody knows.
NOBODY = {"", "?", "n/a", "na", "nan", "null", "unlabeled", "unlabelled", "no_label"}
_MASK = re.compile(r"(.+)[_-](?:gt|\w*(?:mask|depth|segm|label)\w*)", re.IGNORECASE)
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".rar")
_TRAIN = re.compile(r"(?<![^_-])train(ing)?(?![^\d_-])", re.IGNORECASE)
_HELD = re.compile(r"(?<![^_-])(test(ing)?|val|valid|validation|eval)(?![^\d_-])", re.IGNORECASE)
_OUT = re.compile("held|hold[_ -]?out", re.IGNORECASE)
_HEAD = 1 << 16  # characters of a list that are looked through
_MASKED = 0.1  # of all pictures
_MOST = 0.9  # of all pictures
_FEW = 2  # pictures
_LOOKED_FOR = 20  # pictures of a class

Classes = Mapping[str, Sequence[str]]


def look(root: Path, split: str, found: Classes, left_out: Mapping[str, str]) -> list[str]:
    """A line for each thing that a person should look at.

    Args:
        split: the folder of the training split, from the root.
        found: names of each class's pictures, from the root.
        left_out: names of what is none.

    Raises:
        DataError: class folders are splits, or hold them, or hold the classes themselves.
    """
    inner = {name: _inner(split, found[name]) for name in sorted(found)}
    _check(root, split, inner)
    said = [] if split else [*_by_name(found)]
    return [*said, *_doubts(found, inner), *_unread(root, split, found, left_out)]


def _check(root: Path, split: str, inner: Mapping[str, Counter[str]]) -> None:
    """See that they are classes.

    Args:
        inner: by class, the folders in its own.
    """
    classes = list(inner)
    if not split:
        # Alike but for that word: a bullet_train and a test_tube are none.
        parts = {re.sub(r"\d+$", "", _TRAIN.sub("", n)): n for n in classes if _TRAIN.search(n)}
        rest = {n: re.sub(r"\d+$", "", _HELD.sub("", n)) for n in classes if _HELD.search(n)}
        held = [name for name, other in rest.items() if other in parts]
        train = sorted({parts[rest[name]] for name in held})
        if held:
            raise DataError(
                f"{root} has class folders {some(train)} and {some(held)}, which seem to be splits",
                "rename them to train and validation, with a folder for each class in them; or"
                " rename them otherwise, if they are classes",
            )
    cut = [n for n in classes if any(map(_TRAIN.fullmatch, inner[n])) and len(inner[n]) > 1]
    if len(cut) > 1 and any(map(_HELD.fullmatch, inner[cut[0]])):
        raise DataError(
            f"{root / split} has classes with splits in them: {cut[0]} holds"
            f" {some(sorted(inner[cut[0]]))}",
            "lay them out the other way round: DIR/train/CLASS/* and DIR/validation/CLASS/*",
        )
    known = {*classes}
    for name in classes:
        again = sorted((inner[name].keys() & known) - {name})
        if len(again) > 1:
            raise DataError(
                f"{root / split} has a class folder {name}, in which there are folders named as"
                f" the classes beside it: {some(again)}",
                f"take {root / split / name} away, if it is a copy of the rest",
            )
    if {name.lower() for name in classes} <= _BESIDE:
        raise DataError(
            f"{root / split} has the folders {some(classes)}, which are no classes by their names",
            f"lay pictures out as DIR/CLASS/*{elsewhere.beside(root)}; rename them, if they are the"
            " classes",
        )


def _by_name(found: Classes) -> Iterator[str]:
    """Names of pictures that say of which split they are, where a share of all is held out."""
    names = [name for each in found.values() for name in each]
    stems = [(name, name.rpartition(os.sep)[2].rpartition(".")[0]) for name in names]
    train = [name for name, stem in stems if re.search(_TRAIN, stem)]
    held = [name for name, stem in stems if re.search(_HELD, stem)]
    if train and held and len(train) + len(held) > _MOST * len(names):
        yield (
            f"names of pictures say of which split they are, and are not read: {train[0]},"
            f" {held[0]}; where that is meant, move them into DIR/train/CLASS/ and"
            " DIR/validation/CLASS/: else a share of all is held out (data.holdout)"
        )


def _doubts(found: Classes, inner: Mapping[str, Counter[str]]) -> Iterator[str]:
    """What may be no picture of its class."""
    classes = list(inner)
    deep = [name for name in classes if len(inner[name].keys() - {name}) > 1]
    if len({name.count(os.sep) for each in found.values() for name in each}) > 1:
        deep = deep or [name for name in classes if inner[name].keys() - {name}]
    if deep:
        yield (
            f"pictures lie deeper than their class folders: {deep[0]} holds"
            f" {some(sorted(inner[deep[0]]))}, and all of them are of the class {deep[0]}"
        )
    faces = sum("mask" in name.lower() for name in classes) > 1  # with and without
    odd = [n for n in classes if n.lower() in _BESIDE and not (faces and "mask" in n.lower())]
    if odd:
        yield f"class folders that are no classes by their names: {some(odd)}; else take them away"
    nobody = [name for name in classes if name.lower() in NOBODY]
    if nobody:
        yield (
            f"classes of pictures that nobody has labelled, by their names: {some(nobody)}; take"
            " their folders away"
        )
    names = {name.rpartition(".")[0] for each in found.values() for name in each}
    bases = Counter(re.split("[_-](?=[^_-]*$)", name)[0] for name in names)
    marked = ((name, seen.group(1)) for name in names if (seen := _MASK.fullmatch(name)))
    masks = [name for name, base in marked if base in names or bases[base] > 1]
    if len(masks) > _MASKED * len(names):
        yield (
            f"{len(masks):,} pictures are named as masks of others beside them, and are trained on"
            f" as any: {some(masks)}"
        )


def _unread(root: Path, split: str, found: Classes, left_out: Mapping[str, str]) -> Iterator[str]:
    """What lies beside the class folders and may belong to them."""
    packed = [
        name
        for name in left_out
        if name.lower().endswith(_ARCHIVES) and name.partition(".")[0] not in found
    ]
    if packed:
        yield f"archives are not looked into: {some(packed)}; unpack what belongs to the data"
    listed, column = ("", "") if split else _listing(root, found)
    if listed:
        image = f" --data.image_column {shlex.quote(column)}" if column else ""
        yield (
            f"{listed} names these pictures, and is not read: their folders are the classes. If it"
            f" has the classes: --data.root {root / listed}{image} --data.label_column COLUMN"
        )


def few(classes: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    """A line where many classes have hardly a training picture."""
    scarce = [name for name, count in zip(classes, counts, strict=True) if count <= _FEW]
    if len(classes) > _FEW and len(scarce) >= len(classes) / 2:
        yield f"{len(scarce):,} of {len(classes):,} classes have {_FEW} training pictures or fewer"


def _inner(split: str, names: Sequence[str]) -> Counter[str]:
    """How many of a class's pictures lie in each of the folders in its own, however deep."""
    at = len(Path(split).parts) + 1  # behind the split's folder and the class's
    return Counter(folder for name in names for folder in name.split(os.sep)[at:-1])


def is_held_out(name: str) -> bool:
    """Whether a folder is called as a split that is held out, in whichever words."""
    return any(sign.search(name) for sign in (_HELD, _OUT))


def is_split(path: str, held: bool) -> bool:
    """Whether a folder of a picture's path is called as a training split, or one held out."""
    return any(map((_HELD if held else _TRAIN).search, Path(path).parts[:-1]))


def _listing(root: Path, found: Classes) -> tuple[str, str]:
    """The list in the folder that names most of these pictures, and its column that does; empty
    where none names any, or where it has no columns.
    """
    names = {Path(name).name for each in found.values() for name in list(each)[:_LOOKED_FOR]}
    # A number is no name of a picture alone.
    names |= {Path(name).stem for name in names if not Path(name).stem.isdecimal()}
    best, most, column = "", 0, ""
    for entry in entries(root):
        if not entry.name.lower().endswith(LISTS):
            continue
        with suppress(OSError), Path(entry.path).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_HEAD)
            count = len(names & {*re.split(r"[,;\t\n\"/\\]", text)})
            if count > most:
                best, most, column = entry.name, count, _naming(text, names)
    return best, column


def _naming(text: str, names: Set[str]) -> str:
    """The column of a table that has these names in its cells; empty where none has."""
    lines = text.removeprefix("\ufeff").splitlines()[:_LOOKED_FOR]
    for mark in ",;\t|":
        with suppress(csv.Error):
            for row in csv.DictReader(lines, delimiter=mark):
                for name, cell in row.items():
                    if isinstance(cell, str) and {cell, Path(cell).name} & names:
                        return "" if {name, Path(name).name} & names else name  # it has no head
    return ""
