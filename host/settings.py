"""Variables for make, Compose and the doctor: the environment's, and else those of .env."""

from __future__ import annotations

import os

from host import HOME

PASSED = (
    "GPUS",
    "CPUS",
    "PRECISION",
    "ACCELERATE",
    "BASE_IMAGE",
    "APT_SNAPSHOT",
    "CONFIG",
    "DATA",
    "CACHE",
)
"""What a container is to know as well."""


def read() -> dict[str, str]:
    """The environment, and what .env says of the same variables where that is silent."""
    path = HOME / ".env"
    rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (row.split("=", 1) for row in rows if "=" in row)
    filed = {name.strip(): value.strip().strip("\"'") for name, value in pairs}
    own = {n: v for n, v in filed.items() if n in (*PASSED, "CUDA") and not os.environ.get(n)}
    return {**os.environ, **own}
