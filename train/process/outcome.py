"""How a trainer tells the process that launched it what `accelerate launch` does not pass on.

The supervisor names a file in the environment; the first trainer on the machine writes into it that
training has begun, and any that fails, with which error. Without that variable, nothing is written.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import launcher
from host.errors import LockstepError, LostPeers, Stopped, from_fields

VARIABLE = "LOCKSTEP_OUTCOME"


@dataclass(frozen=True)
class Outcome:
    """What was said last.

    Attributes:
        begun: whether anything was: from then on there is something to save.
        error: how it ended, where it did not end well.
        shown: whether a trainer has printed that.
        finished: whether there is nothing left to do.
    """

    begun: bool
    error: LockstepError | None
    shown: bool = False
    finished: bool = False

    @property
    def known(self) -> bool:
        """Whether somebody said why it ended, and not only that another process is gone."""
        return self.error is not None and not isinstance(self.error, LostPeers)


def handed() -> bool:
    """Whether the supervisor of several processes was told of a stop, whose exit code it gives."""
    if VARIABLE not in os.environ:
        return False
    if launcher.elastic():  # else another machine goes, and this one's are to be started again
        return asked()
    if (launcher.world() or 1) == 1:
        return False
    stopped = isinstance(told().error, Stopped)
    return stopped or launcher.local_rank() != 0  # the first one tells


def told() -> Outcome:
    """What was said last to the supervisor of this process."""
    path = os.environ.get(VARIABLE)
    return read(Path(path)) if path else Outcome(False, None)


def asked() -> bool:
    """Whether the supervisor of this process was asked to stop: torchrun's agent stops trainers as
    well, to start them again.
    """
    path = os.environ.get(VARIABLE)
    return path is not None and _marker(Path(path)).exists()


def mark_asked(path: Path) -> None:
    """Say so, as the supervisor."""
    with suppress(OSError):
        _marker(path).touch()


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.asked")


def begun() -> None:
    """Say that there is something to save from now on."""
    if launcher.local_rank() == 0:
        _write({"begun": True})


def finished() -> None:
    """Say that all is done: a signal that comes from now on stops nothing."""
    if launcher.local_rank() == 0:
        _write({"begun": True, "finished": True})


def again() -> None:
    """Take back how it ended: it goes on."""
    if told().error is not None:
        _write({"begun": True})


def ended(error: LockstepError, *, shown: bool = False) -> None:
    """Say how it ended; one that only lost the others leaves the word to them.

    Args:
        shown: whether it is printed by this process.
    """
    if not (isinstance(error, LostPeers) and told().error):
        _write({**error.fields(), "shown": shown})


def read(path: Path) -> Outcome:
    """What was said."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return Outcome(False, None)
    error = from_fields(found) if "problem" in found else None
    return Outcome(True, error, found.get("shown", False), found.get("finished", False))


def _write(content: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with suppress(OSError):  # a full disk is what may have to be told
            Path(path).write_text(json.dumps(content))
