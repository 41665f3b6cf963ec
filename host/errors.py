"""The ways a command can end badly, each with an exit code and a way to mend it.

Exit codes: 0 done · 2 usage or configuration · 3 data · 4 checkpoint · 5 diverged · 6 the
environment · 7 not reproduced · 75 stopped by a signal after saving.
"""

from __future__ import annotations

import difflib
import os
from typing import Any, ClassVar, Iterable, Mapping

from host import TOLD
from host.text import printable

# A trainer's words, and what who calls make says for them.
_MAKES = {"add --resume": "ARGS=--resume", "choose another --run": "RUN="}


class LockstepError(Exception):
    """Something the user can mend: `problem` says what is wrong, `fix` what to do about it.

    `one_rank` marks an error that only the raising process can have seen; the others would
    otherwise have to guess, so such an error is printed whichever rank it happens on.
    """

    code: ClassVar[int] = 1
    label: ClassVar[str] = "error"

    def __init__(self, problem: str, fix: str, *, one_rank: bool = False) -> None:
        super().__init__(problem, fix)  # so that it can be sent between processes
        # Libraries like to put line breaks into their messages.
        self.problem = printable(" ".join(problem.split()))
        self.fix = printable(" ".join(fix.split()))
        self.one_rank = one_rank

    def __str__(self) -> str:
        """One line."""
        return f"{self.problem} → {self.fix}"

    def line(self) -> str:
        """What is printed of it, with make's words beside the trainer's for who calls make."""
        fix = self.fix
        for words, makes in _MAKES.items() if TOLD in os.environ else ():
            fix = fix.replace(words, f"{words} (make: {makes})")
        return f"{self.label}: {self.problem} → {fix}"

    def fields(self) -> dict[str, Any]:
        """The same as data, for another process; `from_fields` takes it back."""
        kind = type(self)
        return {
            "kind": kind.__name__,
            "code": kind.code,
            "problem": self.problem,
            "fix": self.fix,
        }


class UsageError(LockstepError):
    """Bad arguments or a bad configuration."""

    code = 2


class DataError(LockstepError):
    """The data cannot be reached, or is not what was said of it."""

    code = 3


class CheckpointError(LockstepError):
    """A checkpoint is missing, damaged or does not fit, or one cannot be written."""

    code = 4


class DivergedError(LockstepError):
    """The loss is no longer a finite number."""

    code = 5


class HostError(LockstepError):
    """The machine: GPUs, driver, processes, disk."""

    code = 6


class OutOfMemory(HostError):
    """A process needs more memory than there is, or was killed for it."""


class LostPeers(HostError):
    """Another process is gone; that one knows why."""


class NotReproduced(LockstepError):
    """A run was trained again, and other bits came out."""

    code = 7


class Stopped(LockstepError):
    """A signal asked the run to stop, and it has saved what it had."""

    code = 75
    label = "stopped"


# A code's own class stands before those that share it.
_KINDS = (
    UsageError,
    DataError,
    CheckpointError,
    DivergedError,
    HostError,
    OutOfMemory,
    LostPeers,
    NotReproduced,
    Stopped,
)
_BY_NAME: dict[str, type[LockstepError]] = {kind.__name__: kind for kind in _KINDS}


def of(code: int) -> type[LockstepError]:
    """The kind of error that ends with an exit code; HostError for codes that are none of ours."""
    return next((kind for kind in _KINDS if kind.code == code), HostError)


def from_fields(fields: Mapping[str, Any]) -> LockstepError:
    """The error that another process wrote down with `fields`."""
    kind = _BY_NAME.get(fields.get("kind", "")) or of(fields["code"])
    return kind(fields["problem"], fields["fix"])


def nearest(word: str, known: Iterable[str], count: int = 1, like: float = 0.5) -> str:
    """'; did you mean …?' for the known words most like `word`, or '' where none is.

    Args:
        like: the least likeness, of 0 to 1.
    """
    close = difflib.get_close_matches(word, list(known), n=count, cutoff=like)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def first_line(error: BaseException) -> str:
    """What a library's error says, cut to what fits on a line."""
    return (str(error).strip().splitlines() or [""])[0][:200]
