"""Python's garbage collector while a process starts.

What modules hold is no garbage, and there is a million of it: to look through it again and again
takes a fifth of the time that torch needs to be imported.
"""

from __future__ import annotations

import atexit
import gc

_SELDOM = 100_000
_USUAL = gc.get_threshold()


def seldom() -> None:
    """Look for garbage seldom: before imports."""
    gc.set_threshold(_SELDOM, *_USUAL[1:])


def as_usual() -> None:
    """Look for it as Python does, but no more among what has been imported until now."""
    gc.freeze()
    # Triton's library complains of what Python does not take down at the end.
    atexit.register(gc.unfreeze)
    gc.set_threshold(*_USUAL)
