"""The folder that an export is written to, and what stands in it already."""

import json
import re
from pathlib import Path
from typing import Any

from host.errors import UsageError

NAMES = {"safetensors": "model.safetensors", "onnx": "model.onnx", "pt2": "model.pt2"}
PATTERNS = [f"{name}*" for name in NAMES.values()]
"""Of the names of all files with weights: large ones are in parts."""
CONFIG, CARD = "config.json", "README.md"
CODE = "code_sha256"
"""Of the user's code that a model of his is made by, in config.json."""
_WEIGHTS = re.compile(r"^\| weights, SHA-256 \| `([0-9a-f]{64})` \|$", re.MULTILINE)


def weights(folder: Path) -> list[Path]:
    """The files with weights that stand in a folder."""
    return [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]


def exported(folder: Path) -> list[Path]:
    """All that an export wrote into a folder."""
    return [*weights(folder), folder / CONFIG, folder / CARD]


def check(folder: Path) -> None:
    """See that nothing would be overwritten but what an export wrote.

    Raises:
        UsageError: there is something else of such a name.
    """
    there = [path.name for path in exported(folder) if path.exists()]
    if there and _of(folder) is None:
        raise UsageError(
            f"{folder} holds {', '.join(there)}, which no export wrote",
            "name another folder: --to, or move that away",
        )


def others(
    folder: Path, sha256: str, written: dict[str, Any], done: set[str]
) -> tuple[bool, list[Path]]:
    """Files of an earlier export that are not made anew, and whether they are of these weights.

    Args:
        sha256: of the weights.
        written: what config.json is to say.
        done: names of files that are made anew.
    """
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        now = json.loads(json.dumps(written))
        if isinstance(said, dict) and CODE not in said:  # earlier exports do not say it
            now.pop(CODE, None)
        same = _of(folder) == sha256 and said == now
    except (OSError, ValueError):
        same = False
    rest = [p for p in weights(folder) if not any(p.name.startswith(name) for name in done)]
    return same, rest


def _of(folder: Path) -> str | None:
    """The weights of an earlier export, as its card has them."""
    try:
        found = _WEIGHTS.search((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.group(1) if found else None
