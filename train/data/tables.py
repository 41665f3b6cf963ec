"""Where images come from: everything goes through Hugging Face `datasets`."""

import gzip
import importlib.util
import logging
import sys
from pathlib import Path

import numpy as np
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    disable_progress_bars,
    load_dataset,
    load_from_disk,
)
from PIL.Image import fromarray

from host.errors import DataError
from train.config import Data
from train.data.images import first_line


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
    if config.source == "digits":
        return DatasetDict(train=digits())
    if config.source == "folder":
        return _folder(config.root)
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


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8×8 pixels, 17 grey levels spread over 0 … 255.

    Read from the file in its package: importing scikit-learn to open it would take a second.
    """
    package = importlib.util.find_spec("sklearn")
    folder = Path(package.origin or "").parent if package else Path()
    with gzip.open(folder / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    grey = (table[:, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    features = Features({"image": Image(), "label": ClassLabel(names=[*"0123456789"])})
    columns = {"image": [fromarray(g) for g in grey], "label": table[:, -1].tolist()}
    return Dataset.from_dict(columns, features=features)


def _folder(root: str | None) -> DatasetDict:
    if root is None:
        raise DataError("data.source is folder, but data.root is not set", "add --data.root DIR")
    path = Path(root)
    if not path.is_dir():
        raise DataError(f"there is no directory {root}", "set --data.root to where the data is")
    try:
        if (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
            found = load_from_disk(root)
        else:
            found = load_dataset(root)
    except Exception as error:
        raise DataError(
            f"{root} holds no data set ({_named(error)})",
            "lay images out as DIR/train/CLASS/*.png (and DIR/validation/…), or put Parquet there",
        ) from error
    return found if isinstance(found, DatasetDict) else DatasetDict(train=found)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
