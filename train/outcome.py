"""How a trainer tells the process that launched it what `accelerate launch` does not pass on.

`train.launch` names a file in the environment; the first trainer on the machine writes into it that
training has begun, and any that fails, with which code and line. Without that variable, nothing is
written.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "LOCKSTEP_OUTCOME"


def begun() -> None:
    """Say that there is something to save from now on."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _write({"begun": True})


def ended(code: int, error: str, *, bystander: bool = False) -> None:
    """Say how it ended; one that only lost the others leaves the word to them."""
    path = os.environ.get(VARIABLE)
    if not (path and bystander and "code" in read(Path(path))):
        _write({"code": code, "error": error, "bystander": bystander})


def read(path: Path) -> dict[str, Any]:
    """What was said last; empty where nothing was."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _write(content: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with suppress(OSError):  # a full disk is what may have to be told
            Path(path).write_text(json.dumps(content))
