"""A user's own functions by their dotted path, `my_package.my_module:function`, and their files."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Callable, Iterable

from host import HOME
from host.errors import UsageError, first_line, nearest

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_OURS = ("container", "doctor", "host", "train")


def is_path(text: str) -> bool:
    """Whether it names a function of a module."""
    return _PATH.fullmatch(text) is not None


def load(knob: str, path: str) -> Callable[..., Any]:
    """The function that a knob's dotted path names; its module is imported.

    Raises:
        UsageError: there is no such module or function, or the module cannot be imported.
    """
    name, _, wanted = path.partition(":")
    _search_here()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        top = name.split(".")[0]
        where = f"run it from the folder that holds {top}; with a container add CODE=DIR/{top}"
        missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "\0")
        raise UsageError(
            f"{knob} {path}: {name} cannot be imported"
            f" ({type(error).__name__}: {first_line(error)})",
            where if missing else "mend it; --debug shows where",
        ) from error
    found = getattr(module, wanted, None)
    if not callable(found):
        others = [n for n, value in vars(module).items() if callable(value)]
        raise UsageError(
            f"{knob} {path}: {name} has no function {wanted}{nearest(wanted, others)}",
            "mend the name",
        )
    return found  # type: ignore[no-any-return]


def imported(paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each imported file that is the user's, by its module's name.

    Those are files below the working directory that are neither ours nor installed packages', and
    those of the packages that `paths` name, wherever they are. {} without paths.
    """
    packages = {path.partition(":")[0].split(".")[0] for path in paths}
    if not packages:
        return {}
    files = {
        name: Path(file).resolve()
        for name, module in sorted(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and not name.endswith("main__")
    }
    return {
        name: digest(path)
        for name, path in files.items()
        if path.is_file() and (name.split(".")[0] in packages or _is_own(path))
    }


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changed(recorded: dict[str, str]) -> list[str]:
    """Names of recorded modules whose files are others now, or gone; nothing is imported."""
    _search_here()
    return [name for name, was in recorded.items() if _digest_of(name) != was]


def _digest_of(name: str) -> str | None:
    """SHA-256 of the file that a module would be imported from."""
    where: Any = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), where)
        if spec is None:
            return None
        where = spec.submodule_search_locations
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return digest(origin) if origin is not None and origin.is_file() else None


def _search_here() -> None:
    here = str(Path.cwd())
    if here not in sys.path:  # `lockstep` as a command, and torchrun's workers, have it not
        sys.path.insert(0, here)


def _is_own(path: Path) -> bool:
    """Whether an imported file is one of the working directory's, and no installed package's."""
    ours = {HOME / each for each in _OURS}
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    return Path.cwd().resolve() in path.parents and not (ours | installed) & {*path.parents}
