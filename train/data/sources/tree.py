"""Folders of pictures: DIR/train/CLASS/*.jpg with DIR/validation/CLASS/*.jpg, or DIR/CLASS/*.jpg.

The first folder is the class, and what lies deeper belongs to it. Links are followed. What is left
out is named.
"""

import os
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

import torch

from host.errors import DataError, nearest
from host.text import some
from train.config import Data
from train.data.pictures import Found, Labelled, no_columns, two_splits
from train.data.sources import elsewhere, layout
from train.data.sources.files import files
from train.data.sources.labels import check_names
from train.data.sources.walk import Walk, entries, is_folder, set_aside

TRAINING = ("train", "training")
HELD_OUT = ("validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation")
_FOLD = re.compile(r"(fold|split|part|cv|k)[ _-]?\d+", re.IGNORECASE)
_LISTS = (".csv", ".tsv", ".jsonl", ".json", ".txt")
_ASIDE = "in no split, with class folders as training has"
_LAYOUT = "lay pictures out as DIR/train/CLASS/* and DIR/validation/CLASS/*, or as DIR/CLASS/*"


def splits(config: Data, root: Path) -> Found:
    """Training and validation split of a folder of pictures.

    Raises:
        DataError: it is laid out otherwise, or a class has no pictures.
    """
    no_columns(config, "class folders")
    walk = Walk(root)
    tops = _splits(root, walk)
    found = {split: _classes(walk, folder) for split, folder in tops.items()}
    classes = sorted(name for name, names in found["train"].items() if names)
    if not classes:
        what = f", only {some(walk.bad or walk.left_out)}" if walk.bad or walk.left_out else ""
        more = elsewhere.classes(root, [*walk.bad, *walk.left_out])
        raise DataError(f"{root} holds no pictures in class folders{what}", f"{_LAYOUT}{more}")
    check_names(classes, "class folders")
    if len(classes) == 1:
        folders = {Path(name).parent for name in found["train"][classes[0]]}
        common = Path(os.path.commonpath(folders))
        inside = {f.relative_to(common).parts[0] for f in folders if f != common}
        if inside:
            whole = common not in folders  # no picture lies beside them
            which = f"name it: --data.root {root / common}" if whole else _LAYOUT
            fix = f"{which}; data.root is the DIR of the class folders, or of train and validation"
            if "validation" in tops:  # which would be lost with a deeper root
                full = [(s, name) for s in tops for name, names in found[s].items() if names]
                deep = [str(root / tops[split] / name) for split, name in full]
                fix = f"move the class folders one level up: out of {' and of '.join(deep)}"
            raise DataError(
                f"{root} has one class, {classes[0]}; deeper down are {some(sorted(inside))}", fix
            )
        another = (
            "put the pictures of another class into a folder beside it:"
            f" {root / tops['train'] / 'ANOTHER'}"
        )
        listed = elsewhere.listed(root)
        more = elsewhere.classes(root, found["train"][classes[0]])
        raise DataError(
            f"{root} has one class, {classes[0]}, and a model learns to tell two or more apart",
            f"{listed}; or {another}" if listed else f"{another}{more}",
        )
    inner = [{*(Path(n).parts[-2] for n in found["train"][name])} for name in classes]
    if all(map(_FOLD.fullmatch, classes)) and len(inner[0]) > 1 and inner.count(inner[0]) > 1:
        raise DataError(
            f"{root} has folds, {some(classes)}, and in each of them {some(sorted(inner[0]))}",
            f"name one of them: --data.root {root / classes[0]}; to train on several, a function of"
            " yours (docs/EXTENDING.md, A data set); rename them, if they are the classes",
        )
    kept = {name: found["train"][name] for name in classes}
    doubts = layout.look(root, tops["train"], kept, walk.left_out)
    aside = [name for name, why in walk.left_out.items() if why == _ASIDE]
    if aside:
        doubts.append(f"no picture is taken from {some(aside)}: {_ASIDE}; rename what is a split")
    train, held = two_splits(
        [
            _labelled(root, tops[split], found[split], classes, split)
            for split in ("train", "validation")
            if split in found
        ],
        config,
    )
    both = "validation" in found
    return Found(train, held, classes, walk.left_out, walk.bad, both=both, doubts=doubts)


def _splits(root: Path, walk: Walk) -> dict[str, str]:
    """The folder of each split, named from the root; "" where the root itself is one."""
    tops = [e.name for e in entries(root) if not set_aside(e.name) and is_folder(e)]
    training = [name for name in tops if name.lower() in TRAINING]
    # A class may be called train: it then holds pictures, and no folders.
    training = [n for n in training if any(is_folder(e) for e in entries(root / n))]
    held = sorted(
        (name for name in tops if name.lower() in HELD_OUT),
        key=lambda name: HELD_OUT.index(name.lower()),
    )
    if not training:
        if held and len(held) == len(tops) and any(is_folder(e) for e in entries(root / held[0])):
            raise DataError(
                f"{root} has no split named train, only {some(tops)}",
                f"rename one of them, or name {root / held[0]} itself",
            )
        _check_misspelt(root, tops, held)
        words = {name.lower() for name in tops}
        if words & {*TRAINING} and words & {*HELD_OUT}:
            lists = sorted(name for name in _names(root, tops) if name.endswith(_LISTS))
            seen = f" ({lists[0]} is no list of pictures with labels)" if lists else ""
            raise DataError(
                f"{root} has splits, {some(tops)}, and no class folders in them{seen}",
                f"{_LAYOUT}{elsewhere.classes(root, _names(root, tops))}",
            )
        return {"train": ""}
    same = [n for n in held if n.lower() != "test"]
    for several in (training, same):
        if len(several) > 1:
            raise DataError(f"{root} has several such splits: {some(several)}", "keep one of them")
    chosen = {"train": training[0], **({"validation": held[0]} if held else {})}
    alike = _alike(root, tops, training[0], held)
    near = (name for name in alike if nearest(name.lower(), HELD_OUT, like=0.8))
    meant = sorted({*near, *filter(layout.is_held_out, alike)})
    if meant and not held:
        raise DataError(
            f"{root} has a split {training[0]}, and none to validate with: {some(meant)} has the"
            " same class folders",
            f"rename it to validation; or take it away, and a share of {training[0]} is held out"
            " (data.holdout)",
        )
    for entry in entries(root):
        if set_aside(entry.name):
            walk.left_out[entry.name] = set_aside(entry.name)
        elif entry.name not in chosen.values():
            folder = is_folder(entry)
            why = f"not used: validation is {held[0]}" if entry.name in held else "in no split"
            if entry.name in alike:
                why = _ASIDE
            walk.left_out[entry.name + "/" * folder] = why
    return chosen


def _alike(root: Path, tops: list[str], split: str, known: list[str]) -> list[str]:
    """Folders that are no known split, and hold class folders of one that is."""
    inside = {name: {e.name for e in entries(root / name) if is_folder(e)} for name in tops}
    return [n for n in tops if n not in (split, *known) and inside[n] & inside[split]]


def _check_misspelt(root: Path, tops: list[str], held: list[str]) -> None:
    """Refuse a split of another name beside one that is known: it holds the same class folders."""
    for split in held:
        alike = _alike(root, tops, split, held)
        if alike:
            raise DataError(
                f"{root} has a split {split}, and none named train: {some(alike)} has the same"
                " class folders",
                f"rename {alike[0]} to train",
            )


def _names(root: Path, folders: list[str]) -> list[str]:
    return [f"{folder}/{entry.name}" for folder in folders for entry in entries(root / folder)]


def _classes(walk: Walk, folder: str) -> dict[str, list[str]]:
    """Names of each class's pictures, in the split that lies in `folder`."""
    found: dict[str, list[str]] = defaultdict(list)
    spelled: dict[str, str] = {}
    first = len(walk.pictures)
    walk.linked.clear()  # what both splits link to is in both
    walk.into(folder)
    for name in walk.pictures[first:]:
        parts = Path(name).relative_to(folder or ".").parts
        if len(parts) == 1:
            walk.bad[name] = "beside the class folders, and so of no class"
            continue
        found[_class(walk.root, folder, parts[0], spelled)].append(name)
    for entry in entries(walk.root / folder):
        name = str(Path(folder, entry.name))
        if is_folder(entry) and not set_aside(entry.name) and name not in walk.left_out:
            label = _class(walk.root, folder, entry.name, spelled)
            if not found[label]:
                del found[label]
                walk.bad[f"{name}/"] = "a class folder without pictures"
    return found


def _class(root: Path, folder: str, name: str, spelled: dict[str, str]) -> str:
    """A class by its folder's name, in one of the two ways in which Unicode writes an accent."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the class folder {name!r} in {root / folder} is not named in UTF-8", "rename it"
        ) from error
    label = unicodedata.normalize("NFC", name)
    if spelled.setdefault(label, name) != name:
        raise DataError(
            f"{root / folder} has two folders for the class {label}, which differ in how an accent"
            " is written",
            "put their pictures into one",
        )
    return label


def _labelled(
    root: Path, folder: str, found: dict[str, list[str]], classes: list[str], split: str
) -> Labelled:
    unknown = sorted(found.keys() - set(classes))
    if unknown:
        same = [name for name in classes if name.casefold() == unknown[0].casefold()]
        near = nearest(unknown[0], classes, like=0.7)
        raise DataError(
            f"{len(unknown)} class{'es' * (len(unknown) > 1)} of the {split} split, and of no"
            f" training picture: {some(unknown)}; training has {some(classes)}"
            f"{f'; did you mean {same[0]}? Capitals count' if same else near}",
            f"give all splits the same class folders{elsewhere.beside(root / folder)}",
        )
    pairs = sorted(
        ((os.fsencode(name), place) for place, c in enumerate(classes) for name in found.get(c, ()))
    )
    if not pairs:
        raise DataError(
            f"{root / folder}, the {split} split, has no pictures in class folders",
            "lay them out so; or take that folder away: a share of all is held out then"
            f" (data.holdout){elsewhere.beside(root / folder)}",
        )
    names = [os.fsdecode(name) for name, _ in pairs]
    return Labelled(files(root, names), torch.tensor([p for _, p in pairs], dtype=torch.int64))
