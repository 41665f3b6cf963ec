"""The state of the checkout: its commit, and what differs from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import Optional, Tuple

from host import HOME

VARIABLE = "LOCKSTEP_GIT"
"""In a container there is no history: the host says it there, as COMMIT or COMMIT+SHA256."""

State = Tuple[Optional[str], Optional[str]]


def state() -> State:
    """Commit, and SHA-256 of what differs from it (None: nothing); both None outside git."""
    told = os.environ.get(VARIABLE)
    if told:
        commit, _, different = told.partition("+")
        return commit, different or None
    head = _git("rev-parse", "HEAD")
    # As git would show it to nobody in particular, whatever the user's settings are.
    words = ("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv")
    changed = _git(*words) if head else None
    return head.decode() if head else None, hashlib.sha256(changed).hexdigest() if changed else None


def told() -> str:
    """The same as one word, for VARIABLE; "" outside git."""
    commit, different = state()
    return (commit or "") + (f"+{different}" if different else "")


def _git(*words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(HOME), *words],
            capture_output=True,
            timeout=30,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
