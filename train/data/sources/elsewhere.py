"""Where else than in folders the classes of pictures may stand, for the end of an error's line."""

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from host import regular
from host.errors import DataError
from host.text import short, some
from train.data.sources.walk import LISTS, entries, has_suffix

_NAMED = re.compile(r"(.*?[^\W\d_].*?)[ ._-]*\(?\d+\)?")  # cat.1, great_pyrenees_12, dog (3)
_CAMERAS = {"dsc", "dscn", "frame", "image", "img", "p", "photo", "picture", "pxl"}
_BOX = re.compile(r"\s*\d+( [\d.]+){4,}\s")
OTHER_LISTS = (".json", ".manifest", ".txt", ".mat", ".xml")
# What says nothing of classes, and what most likely does.
_SAYS = re.compile(r"^(?!.*(licen[sc]e|readme|submission|notice|requirements))", re.IGNORECASE)
_OF_CLASSES = re.compile(r"label|annot|class|train|attr|truth|meta", re.IGNORECASE)
_HEAD = 1 << 16  # bytes of a file that are looked through
_LOOKED_FOR = 20  # files


def classes(root: Path, names: Iterable[str] = ()) -> str:
    """Where else than in folders the classes may stand; for a line's end.

    Args:
        names: of pictures in no class folder.
    """
    text, is_list = _beside(root)
    return text if is_list else _boxed(root) or _named(names) or text


def _named(names: Iterable[str]) -> str:
    found = Counter[str]()
    first = ""
    for name in filter(has_suffix, names):
        seen = _NAMED.fullmatch(Path(name).stem)
        if seen is None:
            return ""
        found[seen[1]] += 1
        first = first or f"{Path(name).name} is of the class {seen[1]}"
    if not 1 < len(found) <= found.total() / 2 or {n.lower() for n in found} & _CAMERAS:
        return ""
    return f"; or, if {first}, write a labels.csv with the columns file_name and label"


def _boxed(root: Path) -> str:
    tops = [top / "labels" for top in (root, root / "train", root.parent)]
    for folder in (*tops, *(top / "train" for top in tops)):  # labels/train, too
        files: list[Path] = []
        with suppress(DataError):
            files = [Path(e.path) for e in entries(folder) if e.name.endswith(".txt")]
        for file in files[:_LOOKED_FOR]:
            with suppress(OSError):
                if _BOX.match(regular.read(file, _HEAD).decode(errors="replace")):
                    return (
                        f"; {file} seems to hold boxes for a detector, and this trains"
                        " classifiers of whole pictures"
                    )
    return ""


def listed(root: Path) -> str:
    """The list in the folder, or beside it, that may have the classes; for a line's end."""
    text, is_list = _beside(root)
    return text.removeprefix("; or, ") if is_list else ""


def beside(root: Path) -> str:
    """Where else the classes may stand: in a list in the folder, or beside it; for a line's end."""
    return _beside(root)[0]


def _beside(root: Path) -> tuple[str, bool]:
    """That, and whether it is a list that can be read."""
    for folder in (root, root.parent):
        files: list[str] = []
        with suppress(DataError, OSError):
            files = [entry.name for entry in entries(folder) if entry.is_file()]
        files = sorted(filter(_SAYS.search, files), key=lambda n: (not _OF_CLASSES.search(n), n))
        lists = [name for name in files if name.lower().endswith(LISTS)]
        if lists and _headless(folder / lists[0]):
            path = folder / lists[0]
            text = f"; or, if {path} has the classes, write file_name,label as its first line"
            return text, True
        if lists:
            named = _columns(folder / lists[0])
            return (
                f"; or, if {lists[0]} has the classes{named}: --data.root {folder / lists[0]}"
                " --data.image_column COLUMN --data.label_column COLUMN"
            ), True
        others = [name for name in files if name.lower().endswith(OTHER_LISTS)]
        if others and folder == root:
            return (
                f"; or, if {others[0]} has the classes, write a labels.csv from it, with the"
                " columns file_name and label"
            ), False
    return "", False


def _headless(path: Path) -> bool:
    """Whether a list begins with a picture, and not with names of columns."""
    return any(map(has_suffix, _cells(path)))


def _columns(path: Path) -> str:
    """What a list most likely calls its columns: (its first line: id, diagnosis)."""
    cells = [short(cell) for cell in _cells(path) if cell]
    odd = any("\0" in cell or "\ufffd" in cell for cell in cells)
    return f" (its first line: {some(cells)})" if len(cells) > 1 and not odd else ""


def _cells(path: Path) -> list[str]:
    """What stands in the first line of a list."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return []
    with suppress(OSError), regular.opened(path) as file:
        first = file.read(_HEAD).decode("utf-8-sig", errors="replace").split("\n", 1)[0]
        return [cell.strip(' "\r') for cell in re.split(r"[,;\t]", first)]
    return []
