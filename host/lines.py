"""The table of CUDA lines, read from the Dockerfile: the only place that knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from host import HOME
from host.nvidia import Capability

_ROW = re.compile(
    r"^FROM \$\{BASE_IMAGE:-(?P<image>[^}]+)\} AS (?P<name>cuda\d+)\n"
    r'LABEL dev\.lockstep\.driver="(?P<driver>\d+)"'
    r' dev\.lockstep\.capabilities="(?P<capabilities>[\d. ]+)"\n',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Line:
    """A CUDA line: its base image, and what its wheels need."""

    name: str
    image: str
    driver: int
    """The least driver, as a major version."""
    capabilities: tuple[Capability, ...]
    """What the kernels were compiled for, ascending."""

    @property
    def lock(self) -> Path:
        """The hash lock that is installed."""
        return HOME / "requirements" / f"{self.name}.txt"

    def runs_on(self, capability: Capability) -> bool:
        """Whether a GPU can run the kernels: those for M.m run on each M.n with n ≥ m."""
        return any(
            major == capability[0] and minor <= capability[1] for major, minor in self.capabilities
        )


def lines() -> list[Line]:
    """All CUDA lines, newest first."""
    text = (HOME / "Dockerfile").read_text(encoding="utf-8")
    return [
        Line(row["name"], row["image"], int(row["driver"]), _capabilities(row["capabilities"]))
        for row in _ROW.finditer(text)
    ]


def _capabilities(text: str) -> tuple[Capability, ...]:
    return tuple(sorted(capability(word) for word in text.split()))


def capability(text: str) -> Capability:
    """8.6 as (8, 6)."""
    major, minor = text.split(".")
    return int(major), int(minor)
