"""Which engine runs the targets: Docker where one answers, else the local environment.

    python3 -m host.docker [auto|docker|local]

prints docker or local, and says why on stderr where that was for it to decide.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import Any

from host import HOME, INSIDE, dockerd
from host.dockerd import LOCAL
from host.errors import HostError, LockstepError, UsageError
from host.machine import Answer, Machine

_COMPOSE = (2, 24)
_TOOLKIT = (
    "install it, then `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)


def check(wanted: str) -> None:
    """See that ENGINE is one that there is.

    Raises:
        UsageError: it is another word.
    """
    if wanted not in ("auto", "docker", "local"):
        raise UsageError(f"ENGINE={wanted} is no engine", "use auto, docker or local")


def choose(wanted: str) -> tuple[str, str]:
    """The engine, and the line that says so ("" where there was nothing to decide).

    Raises:
        HostError: Docker is wanted, and cannot be used.
    """
    check(wanted)
    if wanted == "local" or INSIDE.exists():
        return "local", ""
    try:
        version = answers()
    except HostError as error:
        if wanted == "docker":
            raise
        return "local", f"engine: local environment ({error.problem})"
    return "docker", f"engine: Docker {version}" if wanted == "auto" else ""


def answers(machine: Machine | None = None) -> str:
    """The version of the Docker engine that trains.

    Raises:
        HostError: none answers, or Compose is missing or too old.
    """
    machine = machine or Machine()
    version = of(machine)
    compose = machine.run("docker", "compose", "version", "--short", seconds=60)
    found = tuple(int(n) for n in re.findall(r"\d+", compose.out)[:2])
    if compose.code != 0 or found < _COMPOSE:
        had = f"is {compose.out.strip()}" if compose.code == 0 else "is missing"
        # Ubuntu's own package of Docker goes with another one of Compose.
        ubuntus = "ubuntu" in machine.run("docker", "--version").out
        package = "docker-compose-v2" if ubuntus else "docker-compose-plugin"
        raise HostError(
            f"Docker Compose {had}, and 2.24 is needed",
            f"install {package}, and remove an older copy from ~/.docker/cli-plugins and"
            f" /usr/local/lib/docker/cli-plugins, {LOCAL}",
        )
    return version


def of(machine: Machine) -> str:
    """The version of the Docker engine that answers, whatever Compose there is.

    Raises:
        HostError: none does.
    """
    if not machine.has("docker"):
        raise HostError("there is no Docker on this machine", f"install Docker Engine, {LOCAL}")
    done = machine.run("docker", "version", "--format", "{{.Server.Version}}", seconds=60)
    if done.code != 0:
        raise dockerd.unanswered(machine, done.said)
    if "podman" in f"{done.err}{machine.run('docker', '--version').said}".lower():
        raise HostError(
            "docker is Podman here, which this does not use",
            f"install Docker Engine, {LOCAL}",
        )
    return done.out.strip()


def project() -> str:
    """The Compose project of this user and checkout: another of the same name is another one."""
    place = f"{os.getuid()} {HOME}".encode()
    return f"lockstep-{hashlib.sha256(place).hexdigest()[:8]}"


def rootless() -> bool:
    """Whether root in a container is the caller outside."""
    return "rootless" in Machine().run("docker", "info", "--format", "{{.SecurityOptions}}").out


def handover(machine: Machine | None = None) -> str | None:
    """How the engine can hand GPUs to a container: nvidia, cdi, or None."""
    machine = machine or Machine()
    done = machine.run("docker", "info", "--format", "{{json .Runtimes}}", seconds=60)
    if "nvidia" in _json(done, dict):
        return "nvidia"
    # The engine's own support asks for no more than the toolkit's hook, which a snap does not see.
    root = machine.run("docker", "info", "--format", "{{.DockerRootDir}}", seconds=60).out
    if machine.has("nvidia-container-runtime-hook") and "/snap/" not in root:
        return "nvidia"
    system = machine.run("docker", "info", "--format", "{{.OperatingSystem}}", seconds=60)
    if "Docker Desktop" in system.out and machine.exists("/dev/dxg"):  # Windows' hands them over
        return "nvidia"
    # Engines from 25 on, where it is switched on; older ones do not know the word.
    asked = machine.run("docker", "info", "--format", "{{json .CDISpecDirs}}", seconds=60)
    folders = map(str, _json(asked, list))
    specs = [f"{folder}/{name}" for folder in folders for name in machine.names(folder)]
    # What only root may read the engine reads.
    told = [(path, machine.read(path)) for path in specs]
    closed = any("nvidia" in path for path, text in told if text is None)
    if closed or any("nvidia.com/gpu" in (text or "") for _, text in told):
        return "cdi"
    # Engines from 28.3 on say themselves what they found.
    listed = machine.run("docker", "info", "--format", "{{json .DiscoveredDevices}}", seconds=60)
    return "cdi" if any("nvidia.com/gpu" in str(each) for each in _json(listed, list)) else None


def _json(answer: Answer, kind: type) -> Any:
    """What the engine says, as `kind`; an empty one where it says something else."""
    try:
        said = json.loads(answer.out) if answer.code == 0 else None
    except ValueError:  # cut short
        said = None
    return said if isinstance(said, kind) else kind()


def no_toolkit(gpus: int) -> HostError:
    """GPUs are here, and Docker cannot reach them."""
    here = f"{gpus} GPU{'s are' if gpus != 1 else ' is'} here"
    return HostError(f"{here}, and Docker has no NVIDIA Container Toolkit", _TOOLKIT)


def main() -> int:
    """Print the engine."""
    try:
        engine, said = choose(sys.argv[1] if len(sys.argv) > 1 else "auto")
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    if said:
        print(said, file=sys.stderr)
    print(engine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
