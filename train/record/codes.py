"""Which code has trained a run, start by start."""

import re
from collections.abc import Mapping
from typing import Any


def mixed(manifest: Mapping[str, Any], step: int | None = None) -> list[str]:
    """Files of the code of which more than one has trained a run, each with the first and the last.

    Args:
        step: where it goes on now; a start that trained no step does not count.
    """
    attempts = manifest.get("attempts", [])
    if not attempts:
        return []
    ends = [*(attempt.get("from_step") for attempt in attempts[1:]), step]
    now: dict[str, str] = {}
    begun = False  # what began a run and trained no step of it is none of its codes
    seen: dict[str, list[str]] = {}
    for attempt, end in zip(attempts, ends, strict=True):
        for name, before, after in filter(None, map(_code_of, attempt.get("changed", []))):
            seen.setdefault(name, [before] if begun else [])
            now[name] = after
        if attempt.get("from_step") != end:
            begun = True
            for name, digest in now.items():
                seen[name].append(digest)
    return [
        f"{name} was {digests[0]}, and {_last(digests)} later"
        for name, digests in sorted(seen.items())
        if len({*digests}) > 1
    ]


def _last(digests: list[str]) -> str:
    """The last of several, where it is not the first one again."""
    return next((each for each in reversed(digests) if each != digests[0]), digests[0])


def _code_of(factor: str) -> tuple[str, str, str] | None:
    found = re.fullmatch(r"(code .+): (.+) recorded, (.+) now", factor)
    return (found[1], found[2], found[3]) if found else None
