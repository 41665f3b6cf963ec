"""A folder of the user's: tables, lists of pictures or class folders, as what lies in it says."""

from pathlib import Path

from host.errors import DataError
from train.config import Data
from train.config.data import root_flag
from train.data.pictures import Found
from train.data.sources import elsewhere, idx, listing, tree, walk

_ARRAYS = {".npz", ".npy", ".h5", ".hdf5", ".mat", ".pkl", ".pt", ".tfrecord", ".lmdb"}
_TABLES = {".parquet", ".arrow", ".tar"}
_SAYINGS = ("README.md", ".huggingface.yaml", "dataset_dict.json", "dataset_info.json")


def splits(config: Data) -> Found:
    """Training and validation split.

    Raises:
        DataError: it holds none, or is damaged.
    """
    if config.root is None:
        raise DataError("data.source is folder, but data.root is not set", "add --data.root DIR")
    root = Path(config.root)
    if root.is_file():
        if root.suffix.lower() not in walk.LISTS:
            fix = "name the folder that it lies in"
            if root.suffix.lower() in _ARRAYS:
                fix = (
                    "data that is no pictures in files comes from a function: --data.source"
                    " my_package.data:tables (docs/EXTENDING.md)"
                )
            elif root.suffix.lower() in elsewhere.OTHER_LISTS:
                fix = "write a labels.csv from it, with the columns file_name and label"
            raise DataError(f"{root} is a file, and no list ({', '.join(walk.LISTS)})", fix)
        return listing.splits(config, root, listing.lists(root, config))
    if not root.is_dir():
        raise DataError(f"there is no directory {root}", f"set {root_flag()} to where the data is")
    if _may_hold_tables(root):
        from train.data.sources import inside, tables  # `datasets` takes a second to load

        described = any(True for _ in inside.described(root))
        if described or _has_tables(root) or inside.is_saved(root):
            return tables.from_folder(config, root)
    lists = listing.lists(root, config)
    if lists:
        return listing.splits(config, root, lists)
    if idx.holds(root):
        return idx.splits(config)
    return tree.splits(config, root)


def _may_hold_tables(root: Path) -> bool:
    return _has_tables(root) or any((root / name).exists() for name in _SAYINGS)


def _has_tables(root: Path) -> bool:
    """Whether a table lies in the folder, or a folder deeper."""
    here = walk.entries(root)
    below = (inner for each in here if walk.is_folder(each) for inner in walk.entries(each.path))
    return any(Path(each.name).suffix.lower() in _TABLES for each in (*here, *below))
