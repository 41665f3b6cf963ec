"""The user's own packages, which a container sees beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from host import HOME, dotted
from host.errors import UsageError

_MOST = 1 << 20  # bytes of an experiment
_OURS = ("train", "host", "doctor", "configs", "data", "runs", "container")


def mounts(given: str, words: list[str]) -> list[str]:
    """What mounts them read-only: CODE=, and what of this folder the command takes functions from.

    Args:
        given: CODE=, or nothing.
        words: the command; experiments and runs that it names are looked into.

    Raises:
        UsageError: there is none at CODE=, or it cannot be imported by its name.
    """
    paths = {path.name: path for path in _named(words)}
    if given:
        path = _checked(given)
        paths[path.name] = path
    return [
        word for path in paths.values() for word in ("--volume", f"{path}:/lockstep/{path.name}:ro")
    ]


def _named(words: list[str]) -> Iterator[Path]:
    named = [HOME / word.rpartition("=")[2] for word in words]
    files = [each / name for each in named for name in ("", "config.yaml", "state.json")]
    texts = [*words, *(file.read_text(errors="replace") for file in files if _is_text(file))]
    for word in re.split(r"[\s\"'=,\[\]{}]+", " ".join(texts)):
        top = re.split("[.:]", word)[0]
        if dotted.is_path(word) and top not in _OURS:
            yield from (path for path in (HOME / top, HOME / f"{top}.py") if path.exists())


def _is_text(file: Path) -> bool:
    """Whether it may be an experiment or a record: pictures may be named as well."""
    return file.is_file() and file.stat().st_size < _MOST


def _checked(given: str) -> Path:
    path = Path(given).expanduser().absolute()
    name = path.stem if path.suffix == ".py" else path.name
    if not path.exists():
        raise UsageError(f"CODE={given} does not exist", "name the folder of your package")
    if not name.isidentifier() or (path.is_file() and path.suffix != ".py"):
        raise UsageError(
            f"CODE={given} has no name that Python can import", "name a package, or a .py file"
        )
    taken = HOME / path.name
    if taken.exists() and taken.resolve() != path.resolve():
        raise UsageError(f"CODE={given}: there is a {path.name} here already", "rename yours")
    if path.name in _OURS:
        raise UsageError(f"CODE={given} is part of the checkout", "name your own package")
    return path
