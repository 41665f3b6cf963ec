"""STAGES: into how many stages a model is cut, each on a process of its own, or where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from host.errors import UsageError


@dataclass(frozen=True)
class Stages:
    """What STAGES says.

    Attributes:
        count: how many.
        names: the modules that stages begin with, from the second on; empty: where it is best.
        words: as it was said.
    """

    count: int
    names: tuple[str, ...]
    words: str


def asked(environ: Mapping[str, str]) -> Stages | None:
    """What `environ` asks for; None: each process has the whole model.

    Raises:
        UsageError: the variable has no sense.
    """
    said = environ.get("STAGES", "").strip()
    if not said or said == "1":
        return None
    words = f"STAGES={said}"
    if said.isdecimal() and int(said) > 1:
        return Stages(int(said), (), words)
    names = tuple(name.strip() for name in said.split(","))
    if not all(names) or said.lstrip("-").isdecimal() or len(set(names)) < len(names):
        raise UsageError(
            f"{words} is neither a number nor names of modules",
            "use a number of stages (STAGES=2), or the modules that stages begin with, from the"
            " second on (STAGES=layer2,layer3)",
        )
    return Stages(len(names) + 1, names, words)
