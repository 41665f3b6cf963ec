"""A hardware config, a file of configs/accelerate: what it says that matters before a launch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from host import HOME
from host.errors import UsageError, nearest

CONFIGS = HOME / "configs" / "accelerate"
_SAID = {
    *("compute_environment", "distributed_type", "mixed_precision", "num_machines"),
    *("num_processes", "use_cpu"),
}


@dataclass(frozen=True)
class Hardware:
    """What a hardware config says of one machine.

    Attributes:
        processes: how many it starts; 0: it does not say.
        several: whether it starts as many as it is told.
        sharded: whether weights are spread over the processes, be they on GPUs or on the CPU.
        plain: whether it says nothing beyond device and precision of one process.
    """

    path: Path
    processes: int
    device: str
    precision: str
    several: bool
    sharded: bool
    plain: bool


def read(name: str) -> Hardware:
    """The config of a name; Accelerate reads all of it when it launches.

    Raises:
        UsageError: there is none, or it asks for what this trainer does not do.
    """
    path = _config(name)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        known = sorted(p.stem for p in CONFIGS.glob("*.yaml"))
        raise UsageError(
            f"there is no hardware config {path}{nearest(name, known)}",
            f"use one of {', '.join(known)}",
        ) from None
    said = dict(re.findall(r"^(\w+): *['\"]?([\w,-]+)", text, re.MULTILINE))
    kind = said.get("distributed_type", "NO")
    if kind not in ("NO", "MULTI_GPU", "FSDP"):
        raise UsageError(
            f"ACCELERATE={name} says distributed_type: {kind}, which this trainer does not do",
            "use MULTI_GPU (as multi_gpu.yaml and multi_cpu.yaml do), FSDP or 'NO'",
        )
    processes, machines = (
        int(text) if text.isdecimal() else 0
        for text in (said.get("num_processes", ""), said.get("num_machines", "1"))
    )
    return Hardware(
        path,
        # With 'NO' Accelerate starts one, whatever stands beside it.
        processes // max(1, machines) if kind != "NO" else 1,
        "cpu" if said.get("use_cpu", "").lower() in ("true", "yes", "on") else "cuda",
        said.get("mixed_precision", "no"),
        kind != "NO",
        kind == "FSDP",
        kind == "NO" and machines == 1 and set(re.findall(r"^(\w+):", text, re.MULTILINE)) <= _SAID,
    )


def _config(name: str) -> Path:
    """A hardware config's file, from the working directory where that is the checkout."""
    path, here = CONFIGS / f"{name}.yaml", Path.cwd()
    return path.relative_to(here) if here in path.parents else path
