"""How a trainer tells the process that launched it what `accelerate launch` does not pass on.

`train.launch` names a file in the environment; the main process writes into it that training has
begun, and with which code and line it ended. Without that variable, nothing is written.
"""

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "LOCKSTEP_OUTCOME"


def begun() -> None:
    """Say that there is something to save from now on."""
    _write({"begun": True})


def ended(code: int, error: str) -> None:
    """Say how it ended."""
    _write({"code": code, "error": error})


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
        Path(path).write_text(json.dumps(content))
