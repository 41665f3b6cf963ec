"""What a launcher (Accelerate's, torchrun) tells each of its processes, by environment variables.

https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import os

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ELASTIC = "LOCKSTEP_ELASTIC"
"""Set where machines may go and come: a file that says which run this launch trains."""


def rank() -> int:
    """This process's number among all; 0 where nobody launched it."""
    return int(os.environ.get("RANK") or 0)


def local_rank() -> int:
    """This process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def local_world() -> int:
    """Processes of this launch on this machine: they share its CPUs and its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def world() -> int | None:
    """Processes of this launch that were asked for; None where nobody says."""
    told = os.environ.get("WORLD_SIZE")
    return int(told) if told else None


def elastic() -> str | None:
    """The file of `ELASTIC`; None where all machines stay."""
    return os.environ.get(ELASTIC)
