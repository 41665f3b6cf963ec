"""Hugging Face's tables, from a folder or the hub: their splits, columns and classes."""

import errno
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Image,
    Value,
)

from host import regular
from host.errors import DataError
from host.text import some
from train.config import Data
from train.data.pictures import Found, Labelled, two_splits
from train.data.sources import inside, labels, opening, places
from train.data.sources.tree import HELD_OUT

SUFFIXES = {".parquet", ".arrow", ".tar"}
_DESCRIPTIONS = ("README.md", "dataset_infos.json", "LICENSE", ".gitattributes")


@dataclass(frozen=True)
class Rows:
    """The pictures of a column.

    Attributes:
        table: in the format of Arrow.
        column: with the pictures' bytes, or the names of their files.
        split: what the table is called.
    """

    table: Dataset
    column: str
    split: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, number: int) -> str:
        """The row's place, and what the picture is called there."""
        called = self._row(number).get("path")
        return f"row {number} of {self.split}" + (f" ({called})" if called else "")

    def read(self, number: int) -> bytes:
        """Its bytes. Raises OSError."""
        row = self._row(number)
        if row.get("bytes") is not None:
            return bytes(row["bytes"])
        if not row.get("path"):
            raise OSError(errno.ENODATA, "the row is empty")
        return regular.read(Path(row["path"]))

    def _row(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] | None = self.table[number][self.column][0].as_py()
        return row or {}

    def state(self) -> str | None:
        """Names the rows as they are in files of this machine; None where they are in memory."""
        kept = [file["filename"] for file in self.table.cache_files]
        if not kept:
            return None
        text = f"{self.table._fingerprint} {len(self)} {self.column} "
        digest = hashlib.sha256(text.encode())
        for path in kept:
            digest.update(places.about(Path(path)))
        for chunk in self.table[:][self.column].chunks:  # together they may be too much for Arrow
            for path in chunk.field("path").filter(chunk.field("bytes").is_null()):
                digest.update(places.about(Path(path.as_py() or "")))
        return digest.hexdigest()


def splits(config: Data) -> Found:
    """Training and validation split of a folder of tables, or of a set on the hub.

    Raises:
        DataError: the source cannot be reached, is no data set, or its columns or labels are not
            what the experiment says.
    """
    return tables(opening.source(config), config)


def from_folder(config: Data, root: Path) -> Found:
    """Training and validation split of a folder's tables.

    Raises:
        DataError: it holds no data set, or names what lies elsewhere.
    """
    opening.quiet()
    # The library takes a folder called parquet for its reader of Parquet, and names files by
    # the place that a link leads to.
    root = root.absolute()
    read, used = opening.folder(config, root)
    named = [name for name in inside.names(root) if Path(name).name not in _DESCRIPTIONS]
    taken = {os.path.realpath(name) for name in used}
    unused = [
        os.path.relpath(name, root)
        for name in named
        if used and os.path.realpath(name) not in taken
    ]
    others = [name for name in unused if Path(name).suffix.lower() in SUFFIXES]
    if others:
        raise DataError(
            f"{root} holds tables among other data, and {some(others)} would be left out",
            "put each into a folder of its own",
        )
    found = tables(read, config)
    left_out = dict.fromkeys(unused, "not among the tables")
    return replace(found, left_out=found.left_out | left_out)


def tables(found: DatasetDict, config: Data) -> Found:
    """Training and validation split of these tables.

    Raises:
        DataError: they have no split named train, or their columns or labels are not what the
            experiment says.
    """
    train, held, unused = _two_splits(found)
    image, label = _columns(train, config)
    both = [table for table in (train, held) if table is not None]
    both = [_with_pictures(table, image) for table in both]
    if config.source == "folder" and not config.outside:
        for table in both:
            inside.check_rows(Path(config.root or ""), table, image)
    kind = both[0].features[label]
    said = [
        _said(t, label, name) for t, name in zip(both, ("training", "validation"), strict=False)
    ]
    names = list(kind.names) if isinstance(kind, ClassLabel) else None
    classes, numbers = labels.number(said[0], said[1] if len(said) > 1 else None, names)
    splits_of = [
        Labelled(Rows(table.with_format("arrow"), image, said.split), number)
        for table, said, number in zip(both, said, numbers, strict=True)
    ]
    left_out = dict.fromkeys(unused[1:], f"validation is {unused[0]}")
    return Found(*two_splits(splits_of, config), classes, left_out, both=len(splits_of) > 1)


def _two_splits(tables: DatasetDict) -> tuple[Dataset, Dataset | None, list[str]]:
    """The training table, that held out if there is one, and what it and others are called."""
    if "train" not in tables:
        raise DataError(
            f"the data has no split named train, only {', '.join(tables)}", "rename one of them"
        )
    train = tables["train"]
    if len(train) == 0:
        raise DataError("the data set is empty", "check data.source and data.root")
    named = [name for name in HELD_OUT if name in tables]
    others = [name for name in tables if name not in (*named[:1], "train")]
    if not named:
        return train, None, ["a part of train", *others]
    if len(tables[named[0]]) == 0:
        raise DataError(f"the {named[0]} split is empty", "remove it, or fill it")
    return train, tables[named[0]], [named[0], *others]


def _columns(table: Dataset, config: Data) -> tuple[str, str]:
    features = table.features
    images = [name for name, kind in features.items() if isinstance(kind, Image)]
    images += [name for name, kind in features.items() if _holds_bytes(kind)]
    classes = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    plain = [name for name, kind in features.items() if isinstance(kind, Value)]
    classes += [name for name in plain if name.startswith("label")]
    classes += ["cls"] * ("cls" in plain)  # as WebDataset has it
    for wanted, found, allowed, knob in (
        (config.image_column, images, images, "image_column"),
        (config.label_column, classes, [*features], "label_column"),
    ):
        if (not found) if wanted is None else (wanted not in allowed):
            missing = wanted or knob.replace("_", " ")
            raise DataError(
                f"the data has no {missing}; its columns: {', '.join(features)}",
                f"name one with --data.{knob}",
            )
    sure = [name for name in classes if isinstance(features[name], ClassLabel)]
    several = sure or ([] if "label" in classes else classes)
    if config.label_column is None and len(several) > 1:
        raise DataError(
            f"the data has several columns that may be the classes: {', '.join(several)}",
            f"name one with --data.label_column {several[0]}",
        )
    label = config.label_column or classes[0]
    if isinstance(features[label], dict):
        raise DataError(
            f"the column {label} holds records ({', '.join(features[label])}), and no class",
            "write the class into a column of its own; in a WebDataset into NAME.cls (a number) or"
            " NAME.txt (a name) beside each picture",
        )
    return config.image_column or images[0], label


def _holds_bytes(kind: Any) -> bool:
    """Whether a column holds files' bytes, though it does not say that they are pictures."""
    if isinstance(kind, dict):
        return getattr(kind.get("bytes"), "dtype", None) in ("binary", "large_binary")
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _with_pictures(table: Dataset, column: str) -> Dataset:
    """The table, its pictures as bytes and paths, whatever its own types."""
    return table.cast_column(column, Image(decode=False))


def _said(table: Dataset, column: str, split: str) -> labels.Said:
    values = table.select_columns(column).with_format("arrow")[:][column].to_pylist()
    return labels.Said(split, values, lambda n: f"row {n} of {split}")
