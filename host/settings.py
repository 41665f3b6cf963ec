"""Variables for make, Compose and the doctor: the environment's, and else those of .env."""

from __future__ import annotations

import os
import re

from host import HOME

WHERE = ("GPUS", "CPUS", "ACCELERATE")
"""Each of them says where to train: one in the environment outweighs all of .env's."""
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
    pairs = (row.split("=", 1) for row in rows if "=" in row and not row.startswith("#"))
    filed = {name.strip(): _value(text) for name, text in pairs}
    own = {n: v for n, v in filed.items() if n in (*PASSED, "CUDA") and n not in os.environ}
    if any(os.environ.get(name) for name in WHERE):
        own.update({name: "" for name in WHERE if name in own})
    return {**os.environ, **own}


def _value(text: str) -> str:
    """A value without its quotes, or without the comment behind it."""
    text = text.strip()
    quoted = re.match(r"([\"'])(.*?)\1", text)
    return quoted.group(2) if quoted else re.sub(r"(^|\s)#.*", "", text).strip()
