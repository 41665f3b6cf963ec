"""`.env`: the lines that this parser, python-dotenv and Compose all read alike; others are refused.

    NAME=value            # a comment may follow a space
    export NAME='as it stands, $ and # too'
    NAME="with spaces"

Compose reads the same file for its containers, and what it took for something else would be
silently other there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import MutableMapping

from host import regular
from host.errors import UsageError

_MOST = 1 << 20  # bytes
# No control characters, and nothing that another parser would put something else for.
_BARE = r"""[^'"\\$#`\0-\x1f]"""
_LINE = re.compile(
    rf"""[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?:
        '(?P<single>(?:[^'\\$\0-\x1f]|\$(?!\{{))*)'[ ]*(?:[ ]\#[^\r]*)?
        |"(?P<double>[^"\\$\0-\x1f]*)"[ ]*(?:[ ]\#[^\r]*)?
        |(?P<bare>(?:(?!\s){_BARE}(?:{_BARE}|(?<!\s)\#)*)?)(?:(?<=[ ])\#[^\r]*)?
    )""",
    re.VERBOSE,
)
_EMPTY = re.compile(r"[ \t]*(#[^\r]*)?")


def read(path: Path) -> dict[str, str]:
    """What the file says, by name; empty where there is none.

    Raises:
        UsageError: it cannot be read, or a line of it may be read in several ways.
    """
    if path.is_dir() or not path.exists():  # a virtual environment is named so as well
        return {}
    try:
        text = regular.read(path, _MOST).decode()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "mend it, or remove it"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", "save it as UTF-8") from error
    found = {}
    for number, row in enumerate(re.split(r"\r?\n|\r$", text), 1):
        line = _LINE.fullmatch(row)
        if line is not None:
            said = line["single"], line["double"], line["bare"]
            found[line["name"]] = next(v for v in said if v is not None)
            if line["bare"] is not None:
                found[line["name"]] = found[line["name"]].strip()
        elif not _EMPTY.fullmatch(row):
            raise UsageError(
                f"{path} line {number} is not NAME=value as all that read it would take it",
                "write NAME=value, or NAME='value' where it has spaces, quotes, $ or #",
            )
    return found


def load(path: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what the environment does not say already.

    Raises:
        UsageError: as `read`.
    """
    for name, value in read(path).items():
        environ.setdefault(name, value)
