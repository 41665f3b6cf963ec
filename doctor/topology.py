"""How the driver says that GPUs reach each other: the cells of `nvidia-smi topo`."""

from __future__ import annotations

import re
from typing import Collection

from host.machine import Machine


def matrix(machine: Machine, *words: str) -> dict[tuple[int, int], str]:
    """What `nvidia-smi topo` has in the cells of its GPUs' rows and columns."""
    said = machine.run("nvidia-smi", "topo", *words).out
    rows = [row.split() for row in said.splitlines() if re.match(r"\s*GPU\d+\s+\S", row)]
    rows = [row for row in rows if "X" in row]  # not the head
    return {
        (a, b): word for a, row in enumerate(rows) for b, word in enumerate(row[1 : len(rows) + 1])
    }


def apart(machine: Machine, gpus: Collection[int]) -> bool:
    """Whether some pair of these GPUs is known to have no NVLink between them."""
    cells = matrix(machine, "-m")
    pairs = [word for (a, b), word in cells.items() if a != b and {a, b} <= {*gpus}]
    return any(not word.startswith("NV") for word in pairs)
