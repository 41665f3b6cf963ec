"""The image that trains: its name, what it is made of, and whether it is there as it should be."""

from __future__ import annotations

import hashlib
import re

from host import HOME, docker, git
from host.errors import UsageError
from host.lines import Line, lines
from host.machine import Machine

# What an image is made of. The code is not among it: Compose mounts the checkout's.
_INPUTS = ("Dockerfile", ".dockerignore", "container/image/*")

ROOM = 14e9
"""Bytes: the image, and the cache of wheels that the next build takes; 12.7 GB measured."""


def name(service: str, line: str) -> str:
    """The image of a Compose service for a CUDA line, with its tag."""
    return f"{'lockstep-dev' if service == 'dev' else 'lockstep'}:{line}"


def labels(line: Line, service: str, base: str, *, snapshot: str = "") -> dict[str, str]:
    """Build arguments that become the image's labels, INPUTS among them: a digest of its inputs.

    Args:
        base: another base image than the line's.
        snapshot: the date of Ubuntu's packages, where one is named.

    Raises:
        UsageError: the line has no lock yet.
    """
    if not line.lock.exists():
        made = next(other.name for other in lines() if other.lock.exists())
        raise UsageError(
            f"there is no lock requirements/{line.lock.name}", f"make it: make lock CUDA={made}"
        )
    locks = [line.lock] + ([HOME / "requirements" / "dev.txt"] if service == "dev" else [])
    of = [line.name, base or line.image, *([snapshot] if snapshot else [])]
    digest = hashlib.sha256(" ".join(of).encode())
    for path in [*sorted(p for pattern in _INPUTS for p in HOME.glob(pattern)), *locks]:
        digest.update(path.name.encode() + path.read_bytes())
    torch = re.search(r"^torch==(\S+)", line.lock.read_text(), re.MULTILINE)
    return {
        "INPUTS": digest.hexdigest()[:16],
        "LOCK_SHA256": hashlib.sha256(line.lock.read_bytes()).hexdigest(),
        "TORCH": torch.group(1) if torch else "unknown",
        "REVISION": git.told() or "unknown",
        "BASE_NAME": base or line.image,
        "CHECKOUT": docker.project(),
    }


def is_current(image: str, inputs: str, machine: Machine | None = None) -> bool:
    """Whether the image is there and made of these inputs."""
    label = '{{index .Config.Labels "dev.lockstep.inputs"}}'
    machine = machine or Machine()
    words = ("docker", "image", "inspect", "--format", label, image)
    return machine.run(*words, seconds=60).out.strip() == inputs
