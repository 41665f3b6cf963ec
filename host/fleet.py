"""Whether several machines train together, and how many, by the variables of any launcher."""

from __future__ import annotations

from contextlib import suppress
from typing import Mapping

from host import nodes
from host.errors import UsageError

_COUNTS = (
    *("NODES", "PET_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES"),
    *("SLURM_NNODES", "NNODES"),  # older than that; many a script's own
)


def several(environ: Mapping[str, str]) -> bool:
    """Whether several machines train together, as far as variables of any launcher say so."""
    return count(environ) > 1


def alone(environ: Mapping[str, str]) -> bool:
    """Whether a launcher says that this machine trains by itself."""
    return not several(environ) and any(environ.get(name) == "1" for name in _COUNTS)


def count(environ: Mapping[str, str]) -> int:
    """How many machines train together; 2 where there are several, and it is not said how many."""
    with suppress(UsageError):
        found = nodes.told(environ)
        if found is not None:
            return found.count
    for name in _COUNTS:
        most = environ.get(name, "").rpartition(":")[2]  # 2:4
        if most.isdecimal():
            return int(most)
    # Clusters set MASTER_ADDR for reasons of their own.
    ranked = environ.get("RANK") or environ.get("NODE_RANK")
    elsewhere = environ.get("MASTER_ADDR", "") not in ("", "localhost", "127.0.0.1", "::1")
    size = environ.get("WORLD_SIZE")
    alone = size is not None and size in ("1", environ.get("LOCAL_WORLD_SIZE"))
    return 2 if ranked and elsewhere and not alone else 1
