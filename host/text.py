"""Text for people, on whatever terminal they have."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Iterable

_SHOWN = 80
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_WHOLE = re.compile(r"-?[0-9]{1,19}")
# A path made of an address has one slash left.
_USER = re.compile(r"(\w:/{1,2})[^\s/@]+@")
_PASS = re.compile(
    r"((?:passw(?:or)?d|passphrase|identitytoken|api[_-]?key|access[_-]?key|secret[\w-]*|\bauth"
    r"|[_-](?:token|key))[\"']?\s*[:=]\s*[\"']?|--[\w-]*(?:key|token|password|secret) )"
    r"[^\s\"',;}]+",
    re.IGNORECASE,
)
_QUERY = re.compile(r"(\w:/{1,2}[^\s?'\"]*)\?[^\s'\"]+")
_NAMED = 3  # of many, in a message


def printable(text: str) -> str:
    """The same with what would do something to a terminal, or cannot be shown, written out.

    Names of files and what is in records may hold escape sequences; addresses, a password or a
    signature.
    """
    text = without_secrets(text)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def without_secrets(text: str) -> str:
    """The same without what stands before the @ of an address, and behind its ?."""
    return _QUERY.sub(r"\1?…", _USER.sub(r"\1…@", text))


def without_passwords(text: str) -> str:
    """The same without what stands behind a word for a password or a key, in a configuration or a
    command.
    """
    return _PASS.sub(r"\1…", without_secrets(text))


def json_line(value: object) -> str:
    """A line of JSON that people can read.

    Names are bytes to the system: what ends a line, commands a terminal or cannot be shown there
    is written out as JSON does.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        return json.dumps(value)
    return text if text.isprintable() else json.dumps(value)


def short(text: str) -> str:
    """Its beginning, where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def show_cursor() -> None:
    """Show a terminal's cursor again, on a line of its own."""
    if sys.stdout.isatty():
        print("\x1b[?25h", flush=True)


class _Outliving(io.TextIOWrapper):
    """Standard output whose reader may leave, as `| head` does, or a `| tee` that is killed."""

    said = ""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._goes_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._goes_nowhere()

    def _goes_nowhere(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if self.said:
            print(self.said, file=sys.stderr, flush=True)


def prepare_output(unread: str = "") -> None:
    """Have what is printed end no program: what the output's encoding lacks is written out, and
    where nobody reads it any more, it goes nowhere. Each line is written at once, so that a log
    has those of other programs and of standard error in their order.

    Args:
        unread: what is said to standard error then, once.
    """
    for name in ("stderr", "stdout"):  # both go to one reader in `2>&1 | head`
        old = getattr(sys, name)
        if isinstance(old, io.TextIOWrapper):
            errors = "backslashreplace"  # as standard error has it anyway
            encoding = old.encoding
            new = _Outliving(old.detach(), encoding, errors, line_buffering=True)
            new.said = unread if name == "stdout" else ""
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)


def number(text: str | None) -> float | None:
    """The number that a text begins with, 16.0 of "16.0 GT/s PCIe"; None where it is none."""
    found = _NUMBER.match((text or "").strip())
    value = float(found.group()) if found else math.inf
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """A text that is a whole number and nothing else; None for any other."""
    found = _WHOLE.fullmatch((text or "").strip())
    return int(found.group()) if found else None


def in_line(name: str) -> str:
    """A name with its line breaks written out, for a line."""
    return name.replace("\n", "\\n")


def some(names: Iterable[object], root: Path | None = None) -> str:
    """A few of many names, for a message."""
    listed = sorted(str(name) for name in names)
    if root is not None:
        listed = [str(Path(name).relative_to(root)) for name in listed]
    listed = [in_line(name) for name in listed[:_NAMED]] + listed[_NAMED:]
    more = f" and {len(listed) - _NAMED:,} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
