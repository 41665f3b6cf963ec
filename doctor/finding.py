"""What a check found."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import asdict, dataclass
from typing import Iterable

from host.errors import HostError
from host.text import printable

SCHEMA = 1
"""Of the rows that --json prints; another number means that a field was changed or taken away."""
_LEAST = 30  # columns for words, however narrow the terminal is
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skip": "90"}


@dataclass(frozen=True)
class Finding:
    """One row of the table.

    Attributes:
        status: ok, warn (it trains, and worse than it could), fail (it does not), or skip.
        seen: what was found; for a skip, why nothing was looked for.
        why: what it costs, where that is not plain.
        fix: a command to paste, where there is one.
    """

    name: str
    status: str
    seen: str
    why: str = ""
    fix: str = ""


def ok(name: str, seen: str) -> Finding:
    """As it should be."""
    return Finding(name, "ok", seen)


def warn(name: str, seen: str, why: str, fix: str) -> Finding:
    """It trains, and worse than it could."""
    return Finding(name, "warn", seen, why, fix)


def fail(name: str, seen: str, why: str, fix: str) -> Finding:
    """It cannot train, or not as asked."""
    return Finding(name, "fail", seen, why, fix)


def in_its_file(fix: str) -> str:
    """What helps, with the flags that a training takes as keys of its experiment's file, which is
    all that --verify takes.
    """
    keys = re.sub(r"--((?:data|model|optim|augment|eval)\.\w+) ([^\s,;)]+)", r"\1: \2", fix)
    return keys if keys == fix else f"{keys} (in the experiment's file)"


def skip(name: str, seen: str) -> Finding:
    """Not looked at."""
    return Finding(name, "skip", seen)


def table(findings: list[Finding], colour: bool, columns: int = 80) -> str:
    """Findings for people: a row each, and under what is not well why that matters and the fix.

    What was not looked at stands at the end, by reason.

    Args:
        columns: of the terminal; what is longer goes on in the next line, but for a fix.
    """
    width = max((len(f.name) for f in findings if f.status != "skip"), default=0)
    indent = " " * (width + 8)
    rows = []
    for found in [f for f in findings if f.status != "skip"]:
        seen = _wrapped(printable(found.seen), indent, columns)
        head = f"{_word(found.status, colour)}  {found.name:<{width}}  "
        rows += [head + seen[0][len(indent) :], *seen[1:]] if seen else [head.rstrip()]
        rows += _wrapped(printable(found.why), indent, columns)
        if found.fix:  # on one line: of a command that is cut, the first half would run
            rows.append(f"{indent}→ {printable(found.fix)}")
    reasons: dict[str, list[str]] = {}
    for found in findings:
        if found.status == "skip":
            reasons.setdefault(found.seen, []).append(found.name)
    for reason, names in reasons.items():
        said = _wrapped(f"{printable(reason)}: {', '.join(names)}", " " * 6, columns)
        rows += [f"{_word('skip', colour)}  {said[0][6:]}", *said[1:]]
    count = {status: sum(f.status == status for f in findings) for status in _COLOURS}
    rows.append(", ".join(f"{number} {status}" for status, number in count.items() if number))
    return "\n".join(rows)


def _word(status: str, colour: bool) -> str:
    word = f"{status:<4}"
    return f"\033[{_COLOURS[status]}m{word}\033[0m" if colour else word


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    """A text in lines between blanks; words that are longer than a line stay whole."""
    return textwrap.wrap(
        text,
        max(columns, len(indent) + _LEAST),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def lines(findings: Iterable[Finding]) -> str:
    """One line for each that is not well, as errors are printed."""
    words = {"fail": "error", "warn": "warning"}
    return "\n".join(
        printable(f"{words[f.status]}: {f.name}: {f.seen} → {f.fix}")
        for f in findings
        if f.status in words
    )


def code(findings: Iterable[Finding]) -> int:
    """The exit code: 0, or that of the environment where a check failed."""
    return HostError.code if any(f.status == "fail" for f in findings) else 0


def to_json(findings: list[Finding]) -> str:
    """Findings for machines: a list of mappings, each of which names the schema."""
    rows = [{**asdict(found), "schema": SCHEMA} for found in findings]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def from_json(text: str) -> list[Finding]:
    """The same back.

    Raises:
        ValueError: it is something else.
    """
    try:
        rows = [{k: v for k, v in row.items() if k != "schema"} for row in json.loads(text)]
        return [Finding(**row) for row in rows]
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
