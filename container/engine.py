"""Which engine runs the targets: Docker where one answers, else the local environment.

    python3 -m container.engine [auto|docker|local]

prints docker or local, and says why on stderr where that was for it to decide.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from container.errors import HostError
from container.table import HOME

# Written into our images when they are built: we are inside one, and its environment is the engine.
INSIDE = Path("/etc/lockstep-image.json")

_COMPOSE = (2, 24)
_TOOLKIT = (
    "install it, then `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)


def choose(wanted: str) -> tuple[str, str]:
    """The engine, and the line that says so ("" where there was nothing to decide).

    Raises:
        HostError: Docker is wanted, and cannot be used.
    """
    if wanted not in ("auto", "docker", "local"):
        raise HostError(f"ENGINE={wanted} is no engine", "use auto, docker or local", 2)
    if wanted == "local" or INSIDE.exists():
        return "local", ""
    try:
        version = answers()
    except HostError as error:
        if wanted == "docker":
            raise
        return "local", f"engine: local environment ({error.problem})"
    return "docker", f"engine: Docker {version}" if wanted == "auto" else ""


def answers() -> str:
    """The version of the Docker engine that answers.

    Raises:
        HostError: none does, or Compose is missing or too old.
    """
    local = "or train without a container: ENGINE=local"
    if shutil.which("docker") is None:
        raise HostError("there is no Docker on this machine", f"install Docker Engine, {local}")
    done = _docker("version", "--format", "{{.Server.Version}}")
    if done.returncode != 0:
        if "permission denied" in done.stderr.lower():
            raise HostError(
                "this user may not use Docker",
                f"`sudo usermod -aG docker $USER` and log in again, {local}",
            )
        raise HostError(
            "no Docker engine answers", f"`sudo systemctl start docker`, check DOCKER_HOST, {local}"
        )
    compose = _docker("compose", "version", "--short")
    found = tuple(int(n) for n in re.findall(r"\d+", compose.stdout)[:2])
    if compose.returncode != 0 or found < _COMPOSE:
        had = f"is {compose.stdout.strip()}" if compose.returncode == 0 else "is missing"
        raise HostError(
            f"Docker Compose {had}, and 2.24 is needed", f"install docker-compose-plugin, {local}"
        )
    return done.stdout.strip()


def project() -> str:
    """The Compose project of this user and checkout: another of the same name is another one."""
    place = f"{os.getuid()} {HOME}".encode()
    return f"lockstep-{hashlib.sha256(place).hexdigest()[:8]}"


def rootless() -> bool:
    """Whether root in a container is the caller outside."""
    return "rootless" in _docker("info", "--format", "{{.SecurityOptions}}").stdout


def handover(root: Path = Path("/")) -> str | None:
    """How the engine can hand GPUs to a container: nvidia, cdi, or None.

    Args:
        root: where this machine's files are.
    """
    done = _docker("info", "--format", "{{json .Runtimes}}")
    runtimes: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    # The engine's own support asks for no more than the toolkit's hook.
    if "nvidia" in (runtimes or {}) or shutil.which("nvidia-container-runtime-hook"):
        return "nvidia"
    # Engines from 25 on, where it is switched on; older ones do not know the word.
    asked = _docker("info", "--format", "{{json .CDISpecDirs}}")
    found = json.loads(asked.stdout) if asked.returncode == 0 else None
    folders = [root / name.lstrip("/") for name in found or []]
    specs = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    return "cdi" if any(b"nvidia.com/gpu" in path.read_bytes() for path in specs) else None


def no_toolkit(gpus: int) -> HostError:
    """GPUs are here, and Docker cannot reach them."""
    here = f"{gpus} GPU{'s are' if gpus != 1 else ' is'} here"
    return HostError(f"{here}, and Docker has no NVIDIA Container Toolkit", _TOOLKIT)


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    line: list[str] = ["docker", *words]
    try:
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(line, 1, "", "timeout")


def main() -> int:
    """Print the engine."""
    try:
        engine, said = choose(sys.argv[1] if len(sys.argv) > 1 else "auto")
    except HostError as error:
        print(error, file=sys.stderr)
        return error.code
    if said:
        print(said, file=sys.stderr)
    print(engine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
