"""Where a training stands, between this machine's trainers and the agent that ends them.

In files beside the one of `outcome`; without that, nothing is said and nothing heard.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from train.process import outcome

_PLACE, _SAVING, _WRITING, _LOST = "place", "saving", "writing", "lost"


def stands(place: str) -> None:
    """Say where the training stands, for whoever ends it; empty: it gets on."""
    path = _file(_PLACE)
    if path is not None:
        with suppress(OSError):
            path.write_text(place)


def stood() -> str:
    """Where the training stood when it last got no further; empty where nobody said."""
    path = _file(_PLACE)
    with suppress(OSError):
        return path.read_text() if path is not None else ""
    return ""


def save() -> None:
    """Say that the main process saves alone, since the others are gone."""
    _touch(_SAVING)


def saves() -> bool:
    """Whether it said so."""
    return _there(_SAVING)


@contextmanager
def writing() -> Iterator[None]:
    """Say within it that a checkpoint is written, which needs no other process."""
    _touch(_WRITING)
    try:
        yield
    finally:
        path = _file(_WRITING)
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def writes() -> bool:
    """Whether one is."""
    return _there(_WRITING)


def lose_others() -> None:
    """Tell this machine's trainers not to wait for the others any more."""
    _touch(_LOST)


def others_lost() -> bool:
    """Whether they were told."""
    return _there(_LOST)


def clear(note: Path | None = None) -> None:
    """Forget all of it: other trainers begin.

    Args:
        note: the file of `outcome`, where it is not this process's own.
    """
    for kind in (_PLACE, _SAVING, _WRITING, _LOST):
        path = _file(kind, note)
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _file(kind: str, note: Path | None = None) -> Path | None:
    told = note or os.environ.get(outcome.VARIABLE)
    return Path(f"{told}.{kind}") if told else None


def _touch(kind: str) -> None:
    path = _file(kind)
    if path is not None:
        with suppress(OSError):
            path.touch()


def _there(kind: str) -> bool:
    path = _file(kind)
    return path is not None and path.exists()
