"""A variable that make does not know: what it may be meant for.

    python3 -m host.strays NAME KNOWN…

prints the end of make's line: the nearest of the variables, or how a knob is written.
"""

from __future__ import annotations

import sys

from host import complete
from host.errors import nearest


def hint(name: str, known: list[str]) -> str:
    """; and what is meant by `name`, or nothing where nothing is like it."""
    close = nearest(name.upper(), known, like=0.8)  # GPU and GPUS, but not MODEL and CODE
    try:
        named = [knob for knob in complete.every_knob() if _is_called(knob, name.lower())]
    except (OSError, ValueError, KeyError):  # somebody is editing the schema
        named = []
    if close or not named:
        return close or nearest(name.upper(), known, like=0.6)
    return f'; it is a knob: ARGS="--{named[0]} …"'


def _is_called(knob: str, word: str) -> bool:
    return word in (knob, knob.replace(".", "_"), knob.rpartition(".")[2]) or knob == f"{word}.name"


if __name__ == "__main__":
    print(hint(sys.argv[1], sys.argv[2:]))
