"""Hugging Face's tables, from a folder or the hub: their splits, columns and classes."""

import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets.config
import PIL.Image
import torch
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Image,
    Value,
    disable_progress_bars,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)
from torch import Tensor

from host.errors import DataError, first_line
from train.config import Data
from train.data import folder
from train.data.pictures import Labelled, kept_and_held

_CLASSES = 1 << 20
_HELD_OUT = ("validation", "valid", "val", "dev", "test")


@dataclass(frozen=True)
class Rows:
    """The pictures of a column."""

    table: Dataset
    column: str
    max_pixels: int

    def __len__(self) -> int:
        return len(self.table)

    def decoded(self, numbers: list[int]) -> list[Any]:
        """As Pillow's pictures. Raises whatever a decoder makes of damaged bytes."""
        # Pillow refuses what has more than twice its limit, and only warns below that; loader
        # processes have a limit of their own.
        PIL.Image.MAX_IMAGE_PIXELS = self.max_pixels // 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            pictures: list[Any] = self.table[numbers][self.column]
        return pictures

    def encoded(self) -> Iterator[bytes]:
        """The bytes of each, as stored."""
        for row in self.table.cast_column(self.column, Image(decode=False)):
            encoded = row[self.column]
            yield encoded["bytes"] or Path(encoded["path"]).read_bytes()


def splits(config: Data) -> tuple[Labelled, Labelled, list[str]]:
    """Training and validation split, and the names of the classes.

    Raises:
        DataError: the source cannot be reached, is no data set, or its columns or labels are not
            what the experiment says.
    """
    train, held = _two_splits(open_tables(config), config.holdout)
    image, label = _columns(train, config)
    if config.source == "folder" and not config.outside:
        for table in (train, held):
            folder.check_rows(Path(config.root or ""), table, image)
    classes, train_labels, held_labels = _labels(train, held, label)
    return (
        Labelled(Rows(train, image, config.max_pixels), train_labels),
        Labelled(Rows(held, image, config.max_pixels), held_labels),
        classes,
    )


def open_tables(config: Data) -> DatasetDict:
    """The source that the experiment names, as tables by split.

    Raises:
        DataError: it cannot be reached, or is no data set.
    """
    # They warn of what is no news here, and count retries; errors come as exceptions anyway.
    logging.getLogger("datasets").setLevel(logging.ERROR)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        disable_progress_bars()
    if config.source == "folder":
        return _folder(config)
    if config.source.count("/") > 1 or config.source.startswith((".", "/")):
        raise DataError(
            f"data.source {config.source} is a path",
            f"write --data.source folder --data.root {config.source}",
        )
    try:
        return load_dataset(config.source, cache_dir=config.root)
    except Exception as error:  # hub, HTTP, file system: each library has its own family
        raise DataError(
            f"data set {config.source} cannot be reached ({_named(error)})",
            "check its name and the network; to work offline, fetch it once on a connected machine"
            f" (`hf download --repo-type dataset {config.source} --local-dir DIR`), copy DIR here"
            " and use --data.source folder --data.root DIR",
        ) from error


def _folder(config: Data) -> DatasetDict:
    root = config.root
    if root is None:
        raise DataError("data.source is folder, but data.root is not set", "add --data.root DIR")
    path = Path(root)
    if not path.is_dir():
        raise DataError(f"there is no directory {root}", "set --data.root to where the data is")
    saved = (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()
    folder.check(path, saved=saved, outside=config.outside)
    try:
        if saved:
            found = load_from_disk(root)
        else:
            # Under its state: what was read of another state must not be taken for this one.
            kept = Path(datasets.config.HF_DATASETS_CACHE) / "folders" / folder.state(path)[:16]
            builder = load_dataset_builder(root, cache_dir=str(kept))
            if not config.outside:
                files = builder.config.data_files or {}
                folder.check_files(path, [name for names in files.values() for name in names])
            builder.download_and_prepare()
            found = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{root} holds no data set ({_named(error)})",
            "lay images out as DIR/train/CLASS/*.png (and DIR/validation/…), or put Parquet there",
        ) from error
    return found if isinstance(found, DatasetDict) else DatasetDict(train=found)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _two_splits(tables: DatasetDict, holdout: float) -> tuple[Dataset, Dataset]:
    if "train" not in tables:
        raise DataError(
            f"the data has no split named train, only {', '.join(tables)}", "rename one of them"
        )
    train = tables["train"]
    if len(train) == 0:
        raise DataError("the data set is empty", "check data.source and data.root")
    for name in _HELD_OUT:
        if name in tables:
            if len(tables[name]) == 0:
                raise DataError(f"the {name} split is empty", "remove it, or fill it")
            return train, tables[name]
    kept, out = kept_and_held(len(train), holdout)
    return train.select(kept.tolist()), train.select(out.tolist())


def _columns(table: Dataset, config: Data) -> tuple[str, str]:
    features = table.features
    images = [name for name, kind in features.items() if isinstance(kind, Image)]
    labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    plain = [name for name, kind in features.items() if isinstance(kind, Value)]
    labels += [name for name in plain if name.startswith("label")]
    for wanted, found, allowed, knob in (
        (config.image_column, images, images, "image_column"),
        (config.label_column, labels, [*features], "label_column"),
    ):
        if (not found) if wanted is None else (wanted not in allowed):
            missing = wanted or knob.replace("_", " ")
            raise DataError(
                f"the data has no {missing}; its columns: {', '.join(features)}",
                f"name one with --data.{knob}",
            )
    return config.image_column or images[0], config.label_column or labels[0]


def _labels(train: Dataset, held: Dataset, column: str) -> tuple[list[str], Tensor, Tensor]:
    kind = train.features[column]
    both = []
    for table in (train, held):
        values = table.select_columns(column).with_format("arrow")[:][column].to_pylist()
        if not all(isinstance(v, int) for v in values):
            raise DataError(f"column {column} holds labels that are no integers", "number them")
        both.append(torch.tensor(values, dtype=torch.int64))
    if isinstance(kind, ClassLabel):
        classes = list(kind.names)
    else:
        highest = int(both[0].max())
        if highest >= _CLASSES:
            raise DataError(
                f"training sample {int(both[0].argmax())} has label {highest}: classes are numbered"
                f" from 0, and {_CLASSES} of them are the most",
                "number them, or name another column with --data.label_column",
            )
        classes = [str(n) for n in range(highest + 1)]
    for name, labels in zip(("training", "validation"), both, strict=True):
        outside = ((labels < 0) | (labels >= len(classes))).nonzero().flatten()
        if len(outside):
            place = int(outside[0])
            raise DataError(
                f"{name} sample {place} has label {int(labels[place])}, outside the"
                f" {len(classes)} classes 0 … {len(classes) - 1} ({len(outside)} such samples)",
                "mend the labels, or name another column with --data.label_column",
            )
    return classes, both[0], both[1]
