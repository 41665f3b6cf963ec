"""A folder of tables: what lies in it is read, and nothing that it only points to.

Files in it may name others: a data set's README.md, the state of a saved one, rows of a Parquet
file. What others have made would so have this machine's files read, or fetch what it names.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset
from datasets.config import REPOYAML_FILENAME
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from pyarrow import compute

from host import regular
from host.errors import DataError, first_line

_MOST = 1 << 20  # bytes of a file that says what belongs to a data set
_FIX = "take it away; if you trust the folder, add --data.outside true"


def check(root: Path, *, saved: bool, outside: bool) -> None:
    """Look through a folder before it is read.

    Args:
        saved: whether it is what `save_to_disk` wrote, which is read by name.
        outside: whether it may name what lies elsewhere.

    Raises:
        DataError: links in it would be left out, or it names what it may not.
    """
    lost, folders = [], []
    for name in names(root):
        if os.path.islink(name):
            lost += [] if os.path.exists(name) else [name]
            folders += [name] if os.path.isdir(name) and not saved else []
    for paths, how in (
        (lost, "lead nowhere"),
        (folders, "lead to folders, which are not followed"),
    ):
        if paths:
            count = f"{len(paths)} link{'s' * (len(paths) > 1)}"
            raise DataError(
                f"{count} in {root} {how}, such as {Path(min(paths)).relative_to(root)}",
                "put files or folders in their place: they would be left out without a word",
            )
    if not outside:
        for file, named in _saved(root) if saved else described(root):
            # A scheme need not have slashes: file:, local:.
            if re.match(r"[\w+.-]+:|/|~", named) or "::" in named or ".." in Path(named).parts:
                raise DataError(f"{file} names {named}, which lies outside of {root}", _FIX)


def is_saved(root: Path) -> bool:
    """Whether it is what `save_to_disk` wrote."""
    return (root / "dataset_dict.json").exists() or (root / "dataset_info.json").exists()


def check_files(root: Path, files: Iterable[str]) -> None:
    """See that the files that are about to be read lie in the folder.

    Raises:
        DataError: one of them does not.
    """
    for name in files:
        if not (name.startswith(tuple(_starts(root))) and "/../" not in name):
            raise DataError(f"{root} names {name}, which lies outside of it", _FIX)


def state(root: Path) -> str:
    """SHA-256 over the folder's place, and names, sizes and times of all that lies in it.

    `datasets` keeps what it has read under the folder's name, and takes that for another folder of
    the name, or for this one after a change, where a README.md describes it.
    """
    digest = hashlib.sha256(f"{root.resolve()}\n".encode(errors="surrogateescape"))
    for name in sorted(names(root)):
        seen = os.stat(name)
        about = (os.path.relpath(name, root), seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        digest.update(f"{about}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _starts(root: Path) -> set[str]:
    """What the names of files in it begin with."""
    return {f"{path}{os.sep}" for path in (root.absolute(), root.resolve())}


def check_rows(root: Path, table: Dataset, column: str) -> None:
    """See that pictures that are files, and not bytes in the table, lie in the folder.

    Raises:
        DataError: one of them does not.
    """
    for chunk in table.with_format("arrow").data.column(column).chunks:
        bare = compute.is_null(chunk.field("bytes"))
        paths = chunk.field("path").filter(bare).drop_null()
        # By name: a link in the folder is the user's own, wherever it leads.
        inside = compute.invert(compute.match_substring(paths, "/../"))
        begins = [compute.starts_with(paths, start) for start in _starts(root)]
        inside = compute.and_(inside, functools.reduce(compute.or_, begins))
        strange = paths.filter(compute.invert(inside))
        if len(strange):
            raise DataError(
                f"a row of {root} names the image {strange[0]}, which is elsewhere", _FIX
            )


def names(root: Path) -> Iterator[str]:
    """Its files, and links to folders; what stands in hidden folders is not data."""
    for place, folders, here in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(place, name) for name in here)
        inner = (os.path.join(place, name) for name in folders)
        yield from (name for name in inner if os.path.islink(name))


def _refuse(error: OSError) -> None:
    raise DataError(
        f"cannot look into {error.filename}: {error.strerror}", "check its owner and permissions"
    ) from error


def _saved(root: Path) -> Iterator[tuple[Path, str]]:
    """What the states of a saved data set name."""
    tables = root / "dataset_dict.json"
    splits = _read(tables).get("splits") if tables.exists() else []
    splits = splits if isinstance(splits, list) else []
    yield from ((tables, str(split)) for split in splits)
    for folder in (root, *(root / str(split) for split in splits)):
        path = folder / "state.json"
        files = _read(path).get("_data_files") if path.exists() else []
        for file in files if isinstance(files, list) else []:
            yield path, str(file.get("filename") if isinstance(file, dict) else file)


def described(root: Path) -> Iterator[tuple[Path, str]]:
    """What the head of a README.md, or a file of its own, says to be the data set's files."""
    for path in (root / "README.md", root / REPOYAML_FILENAME):
        if not path.exists():
            continue
        try:
            text = regular.read(path, _MOST).decode(errors="replace")
            if path.name == "README.md":
                head = REGEX_YAML_BLOCK.search(text)
                text = head.group(2) if head else ""
            said = yaml.safe_load(text)
        except (OSError, yaml.YAMLError, RecursionError, ValueError) as error:
            raise DataError(f"cannot read {path}: {first_line(error)}", "mend it") from error
        configs = said.get("configs") if isinstance(said, dict) else None
        for config in configs if isinstance(configs, list) else []:
            if isinstance(config, dict):
                for name in ("data_files", "data_dir"):
                    yield from ((path, word) for word in _words(config.get(name)))


def _words(said: Any) -> Iterator[str]:
    """All text in it; aliases once."""
    left, seen = [said], set()
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, (dict, list)) and id(each) not in seen:
            seen.add(id(each))
            left += each.values() if isinstance(each, dict) else each


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(regular.read(path, _MOST))
        if not isinstance(found, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {error}", "mend or remove it") from error
    return found
