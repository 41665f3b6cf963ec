"""A folder of the user's: what lies in it is read, and nothing that it only points to.

Files in it may name others: a data set's README.md, the state of a saved one, rows of a Parquet
file. What others have made would so have this machine's files read, or fetch what it names.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset
from pyarrow import compute

from host import regular
from host.errors import DataError

_MOST = 1 << 20  # bytes of a file that says what belongs to a data set
_FIX = "take it away; if you trust the folder, add --data.outside true"


def check(root: Path, *, outside: bool) -> None:
    """Look through a folder before it is read.

    Raises:
        DataError: links in it would be left out, or it names what lies elsewhere and `outside` is
            not set.
    """
    lost, folders = [], []
    for path in _all(root):
        if path.is_symlink():
            lost += [] if path.exists() else [path]
            folders += [path] if path.is_dir() else []
    for paths, how in (
        (lost, "lead nowhere"),
        (folders, "lead to folders, which are not followed"),
    ):
        if paths:
            count = f"{len(paths)} link{'s' * (len(paths) > 1)}"
            raise DataError(
                f"{count} in {root} {how}, such as {min(paths).relative_to(root)}",
                "put files or folders in their place: they would be left out without a word",
            )
    if not outside:
        for file, name in (*_saved(root), *_described(root)):
            if not _inside(name):
                raise DataError(f"{file} names {name}, which lies outside of {root}", _FIX)


def state(root: Path) -> str:
    """SHA-256 over the folder's place, and names, sizes and times of all that lies in it.

    `datasets` keeps what it has read under the folder's name, and takes that for another folder of
    the name, or for this one after a change, where a README.md describes it.
    """
    digest = hashlib.sha256(f"{root.resolve()}\n".encode(errors="surrogateescape"))
    for path in sorted(_all(root)):
        seen = path.stat()
        about = (path, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        digest.update(f"{about}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def check_rows(root: Path, table: Dataset, column: str) -> None:
    """See that pictures that are files, and not bytes in the table, lie in the folder.

    Raises:
        DataError: one of them does not.
    """
    starts = {f"{path}{os.sep}" for path in (root.absolute(), root.resolve())}
    for chunk in table.with_format("arrow").data.column(column).chunks:
        bare = compute.is_null(chunk.field("bytes"))
        paths = chunk.field("path").filter(bare).drop_null()
        # By name: a link in the folder is the user's own, wherever it leads.
        inside = compute.invert(compute.match_substring(paths, "/../"))
        begins = [compute.starts_with(paths, start) for start in starts]
        inside = compute.and_(inside, functools.reduce(compute.or_, begins))
        strange = paths.filter(compute.invert(inside))
        if len(strange):
            raise DataError(
                f"a row of {root} names the image {strange[0]}, which is elsewhere", _FIX
            )


def _all(root: Path) -> Iterator[Path]:
    """Its files, and links to folders; what stands in hidden folders is not data."""
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names)
        yield from (path for name in folders if (path := Path(place, name)).is_symlink())


def _saved(root: Path) -> Iterator[tuple[Path, str]]:
    """What the states of a saved data set name."""
    tables = root / "dataset_dict.json"
    splits = _read(tables).get("splits") if tables.exists() else []
    splits = splits if isinstance(splits, list) else []
    yield from ((tables, str(split)) for split in splits)
    for folder in (root, *(root / str(split) for split in splits)):
        state = folder / "state.json"
        if state.exists():
            for file in _read(state).get("_data_files") or []:
                name = file.get("filename") if isinstance(file, dict) else file
                yield state, str(name)


def _described(root: Path) -> Iterator[tuple[Path, str]]:
    """What the head of a README.md says to be the data set's files."""
    path = root / "README.md"
    if not path.exists():
        return
    try:
        text = regular.read(path, _MOST).decode(errors="replace")
        head = text.split("---", 2)[1] if text.startswith("---") else ""
        said = yaml.safe_load(head) or {}
    except (OSError, yaml.YAMLError, RecursionError, IndexError) as error:
        raise DataError(f"cannot read {path}: {error}", "mend or remove it") from error
    configs = said.get("configs") if isinstance(said, dict) else None
    for config in configs if isinstance(configs, list) else []:
        for name in _words(config, 0):
            yield path, name


def _words(said: Any, depth: int) -> Iterator[str]:
    """All that a description says that may be a path: any text."""
    if isinstance(said, str):
        yield said
    inner = said.values() if isinstance(said, dict) else said if isinstance(said, list) else ()
    for each in inner if depth < 8 else ():
        yield from _words(each, depth + 1)


def _inside(name: str) -> bool:
    return "://" not in name and not name.startswith(("/", "~")) and ".." not in Path(name).parts


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(regular.read(path, _MOST))
        if not isinstance(found, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {error}", "mend or remove it") from error
    return found
