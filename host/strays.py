"""A variable that make does not know: what it may be meant for.

    python3 -m host.strays NAME KNOWN…

prints the end of make's line: the nearest of the variables, or how a knob is written.
"""

from __future__ import annotations

import json
import sys
from typing import Iterator

from host import HOME
from host.errors import nearest


def hint(name: str, known: list[str]) -> str:
    """; and what is meant by `name`, or nothing where nothing is like it."""
    close = nearest(name.upper(), known, like=0.8)  # GPU and GPUS, but not MODEL and CODE
    knobs = [knob for knob in _knobs() if _is_called(knob, name.lower())]
    if close or not knobs:
        return close or nearest(name.upper(), known, like=0.6)
    return f'; it is a knob: ARGS="--{knobs[0]} …"'


def _is_called(knob: str, word: str) -> bool:
    return word in (knob, knob.replace(".", "_"), knob.rpartition(".")[2]) or knob == f"{word}.name"


def _knobs() -> Iterator[str]:
    """Their dotted names, those of the experiment itself first."""
    try:
        schema = json.loads((HOME / "configs/schema.json").read_text(encoding="utf-8"))
        sections = {}
        for name, field in schema["properties"].items():
            if "$ref" in field:
                sections[name] = schema["$defs"][field["$ref"].split("/")[-1]]["properties"]
            else:
                yield name
        for name, fields in sections.items():
            yield from (f"{name}.{field}" for field in fields)
    except (OSError, ValueError, KeyError):  # somebody is editing it
        return


if __name__ == "__main__":
    print(hint(sys.argv[1], sys.argv[2:]))
