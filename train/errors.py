"""The ways a run can end badly, each with an exit code and a way to mend it.

Exit codes: 0 done · 2 usage or configuration · 3 data · 4 checkpoint · 5 diverged · 6 the
environment · 7 not reproduced · 75 stopped by a signal after saving.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class TrainError(Exception):
    """Something the user can mend: `problem` says what is wrong, `fix` what to do about it.

    `one_rank` marks an error that only the raising process can have seen; the others would
    otherwise have to guess, so such an error is printed whichever rank it happens on.
    """

    code: ClassVar[int] = 1
    label: ClassVar[str] = "error"

    def __init__(self, problem: str, fix: str, *, one_rank: bool = False) -> None:
        super().__init__(problem, fix)  # so that it can be sent between processes
        self.problem = problem
        self.fix = fix
        self.one_rank = one_rank

    def __str__(self) -> str:
        """One line: libraries like to put line breaks into their messages."""
        return " ".join(f"{self.problem} → {self.fix}".split())


class UsageError(TrainError):
    """Bad arguments or a bad configuration."""

    code = 2


class DataError(TrainError):
    """The data cannot be reached, or is not what was said of it."""

    code = 3


class CheckpointError(TrainError):
    """A checkpoint is missing, damaged or does not fit, or one cannot be written."""

    code = 4


class DivergedError(TrainError):
    """The loss is no longer a finite number."""

    code = 5


class HostError(TrainError):
    """The machine: GPUs, driver, processes, disk."""

    code = 6


class NotReproduced(TrainError):
    """A run was trained again, and other bits came out."""

    code = 7


class Stopped(TrainError):
    """A signal asked the run to stop, and it has saved what it had."""

    code = 75
    label = "stopped"


class Lost(HostError):
    """Another process is gone; that one knows why."""


def translated(error: BaseException, rank: int) -> HostError | None:
    """What a library's RuntimeError says when a process is gone; None for other errors."""
    text = str(error)
    # DataLoader notices its workers' deaths in a signal handler, so wherever we are.
    if "DataLoader worker" in text:
        return HostError(
            f"a loader process of process {rank} died: {text}",
            "look for lack of memory (dmesg) or of /dev/shm, lower --data.workers, add --resume",
            one_rank=True,
        )
    # How gloo and NCCL say it.
    if any(sign in text for sign in ("closed by peer", "Connection reset", "Broken pipe")):
        return Lost(f"process {rank} lost the others", "see what they say", one_rank=True)
    return None


def nearest(word: str, known: Iterable[str], count: int = 1) -> str:
    """'; did you mean …?' for the known words most like `word`, or '' where none is."""
    close = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
