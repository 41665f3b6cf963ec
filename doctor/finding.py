"""What a check found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Iterable

from host.errors import HostError
from host.text import printable

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


def skip(name: str, seen: str) -> Finding:
    """Not looked at."""
    return Finding(name, "skip", seen)


def table(findings: list[Finding], colour: bool) -> str:
    """Findings for people: a row each, and under what is not well why that matters and the fix.

    What was not looked at stands at the end, by reason.
    """
    width = max((len(f.name) for f in findings), default=0)
    rows = []
    for found in [f for f in findings if f.status != "skip"]:
        word = f"{found.status:<4}"
        if colour:
            word = f"\033[{_COLOURS[found.status]}m{word}\033[0m"
        rows.append(f"{word}  {found.name:<{width}}  {printable(found.seen)}")
        rows += [f"{'':{width + 8}}{line}" for line in _advice(found)]
    reasons: dict[str, list[str]] = {}
    for found in findings:
        if found.status == "skip":
            reasons.setdefault(found.seen, []).append(found.name)
    word = "\033[90mskip\033[0m" if colour else "skip"
    rows += [f"{word}  {printable(seen)}: {', '.join(names)}" for seen, names in reasons.items()]
    count = {status: sum(f.status == status for f in findings) for status in _COLOURS}
    rows.append(", ".join(f"{number} {status}" for status, number in count.items() if number))
    return "\n".join(rows)


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
    """Findings for machines: a list of mappings."""
    return json.dumps([asdict(found) for found in findings], indent=1, ensure_ascii=False)


def from_json(text: str) -> list[Finding]:
    """The same back.

    Raises:
        ValueError: it is something else.
    """
    try:
        return [Finding(**row) for row in json.loads(text)]
    except TypeError as error:
        raise ValueError(str(error)) from error


def _advice(found: Finding) -> list[str]:
    lines = (found.why, f"→ {found.fix}" if found.fix else "")
    return [printable(line) for line in lines if line]
