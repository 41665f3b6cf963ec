"""Hugging Face's tables opened: a set on the hub, a folder of tables, or one that was saved."""

import logging
import os
import sys
from pathlib import Path

import datasets.config
from datasets import (
    DatasetDict,
    disable_progress_bars,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)

from host import dotted
from host.errors import DataError, first_line
from train.config import Data
from train.data.sources import inside


def source(config: Data) -> DatasetDict:
    """The source that the experiment names, as tables by split.

    Raises:
        DataError: it cannot be reached, or is no data set.
    """
    quiet()
    if config.source.count("/") > 1 or config.source.startswith((".", "/")):
        raise DataError(
            f"data.source {config.source} is a path",
            dotted.meant(config.source)
            or f"write --data.source folder --data.root {config.source}",
        )
    try:
        return load_dataset(config.source, cache_dir=config.root)
    except Exception as error:  # hub, HTTP, file system: each library has its own family
        raise DataError(
            f"data set {config.source} cannot be reached ({_named(error)})",
            dotted.meant(config.source)
            or "check its name and the network; to work offline, fetch it once on a connected"
            f" machine (`hf download --repo-type dataset {config.source} --local-dir DIR`), copy"
            " DIR here and use --data.source folder --data.root DIR",
        ) from error


def quiet() -> None:
    """Have the libraries keep to themselves what is no news here."""
    # They warn of what is no news here, and count retries; errors come as exceptions anyway.
    logging.getLogger("datasets").setLevel(logging.ERROR)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        disable_progress_bars()


def folder(config: Data, root: Path) -> tuple[DatasetDict, set[str]]:
    """A folder's tables by split, and the files that they were read from, where that is said.

    Raises:
        DataError: it holds no data set, or names what lies elsewhere.
    """
    saved = inside.is_saved(root)
    inside.check(root, saved=saved, outside=config.outside)
    used: set[str] = set()
    try:
        if saved:
            found = load_from_disk(str(root))
        else:
            # Under its state: what was read of another state must not be taken for this one.
            kept = Path(datasets.config.HF_DATASETS_CACHE) / "folders" / inside.state(root)[:16]
            builder = load_dataset_builder(str(root), cache_dir=str(kept))
            files = builder.config.data_files or {}
            used = {os.path.normpath(name) for names in files.values() for name in names}
            if not config.outside:
                inside.check_files(root, [name for names in files.values() for name in names])
            builder.download_and_prepare()
            found = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{root} holds no data set ({_named(error)})", _way_out(error)) from error
    return found if isinstance(found, DatasetDict) else DatasetDict(train=found), used


def _way_out(error: Exception) -> str:
    said = str(error)
    if "Config name is missing" in said:
        return "it has several configurations: name the folder of one, --data.root DIR/NAME"
    if "corresponds to no data" in said:
        return "of a WebDataset each picture needs a class beside it, .cls or .txt"
    return "put Parquet there, or pictures as DIR/train/CLASS/* and DIR/validation/CLASS/*"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
