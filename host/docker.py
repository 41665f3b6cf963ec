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

from host import HOME, INSIDE
from host.errors import HostError, LockstepError, UsageError
from host.machine import Answer, Machine

# Written into our images when they are built: we are inside one, and its environment is the engine.

_COMPOSE = (2, 24)
_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system")
# What dockerd takes by a flag or in daemon.json, and not by both.
_FLAGS = {
    "-H": "hosts",
    "--host": "hosts",
    "--add-runtime": "runtimes",
    "--default-runtime": "default-runtime",
    "--data-root": "data-root",
    "--log-driver": "log-driver",
    "--storage-driver": "storage-driver",
    "--exec-opt": "exec-opts",
    "--dns": "dns",
    "--bip": "bip",
}
_LOCAL = "or train without a container: ENGINE=local"
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
        raise HostError(
            f"Docker Compose {had}, and 2.24 is needed",
            "install docker-compose-plugin, and remove an older copy from ~/.docker/cli-plugins and"
            f" /usr/local/lib/docker/cli-plugins, {_LOCAL}",
        )
    return version


def of(machine: Machine) -> str:
    """The version of the Docker engine that answers, whatever Compose there is.

    Raises:
        HostError: none does.
    """
    if not machine.has("docker"):
        raise HostError("there is no Docker on this machine", f"install Docker Engine, {_LOCAL}")
    done = machine.run("docker", "version", "--format", "{{.Server.Version}}", seconds=60)
    if done.code != 0:
        raise _unanswered(machine, done.said)
    if "podman" in f"{done.err}{machine.run('docker', '--version').said}".lower():
        raise HostError(
            "docker is Podman here, which this does not use", f"install Docker Engine, {_LOCAL}"
        )
    return done.out.strip()


def _unanswered(machine: Machine, said: str) -> HostError:
    """Why no engine tells its version."""
    if "permission denied" in said.lower():
        return HostError(
            "this user may not use Docker",
            f"`sudo usermod -aG docker $USER` and log in again, {_LOCAL}",
        )
    new = re.search(
        r"client version \S+ is too new. Maximum supported API version is ([\d.]+)", said
    )
    if new:
        return HostError(
            f"Docker's command is newer than its engine, which knows API {new.group(1)} at most",
            f"upgrade docker-ce; until then DOCKER_API_VERSION={new.group(1)}, {_LOCAL}",
        )
    if re.search(r"client version \S+ is too old", said):
        return HostError(
            "Docker's command is older than its engine takes",
            f"upgrade docker-ce-cli and docker-compose-plugin, {_LOCAL}",
        )
    context = machine.run("docker", "context", "show").out.strip()
    if context not in ("", "default"):
        return HostError(
            f"no Docker engine answers in the context {context}",
            f"`docker context use default`, or start that engine, {_LOCAL}",
        )
    return _stopped(machine)


def _stopped(machine: Machine) -> HostError:
    """Why no engine runs."""
    settings = "/etc/docker/daemon.json"
    try:
        json.loads(machine.read(settings) or "{}")
    except ValueError as error:
        return HostError(
            f"no Docker engine answers, and {settings} is no JSON: {error}",
            f"mend it, then `sudo systemctl restart docker`, {_LOCAL}",
        )
    if machine.run("systemctl", "is-active", "docker").out.strip() == "failed":
        twice = _said_twice(machine, settings)
        if twice is not None:
            flag, key, file = twice
            return HostError(
                f"no Docker engine answers: {file} says {flag}, and {settings} says {key}",
                f"say it in one of them (sudo systemctl edit docker), then `sudo systemctl"
                f" daemon-reload`, `sudo systemctl restart docker`; {_LOCAL}",
            )
        legacy = (
            "; a Jetson's kernel wants `sudo update-alternatives --set iptables"
            " /usr/sbin/iptables-legacy`"
            if "nf_tables" in machine.run("iptables", "--version").out
            and machine.exists("/etc/nv_tegra_release")
            else ""
        )
        return HostError(
            "no Docker engine answers: its service has failed",
            f"`sudo journalctl -u docker -n 20` says why{legacy}; {_LOCAL}",
        )
    return HostError(
        "no Docker engine answers", f"`sudo systemctl start docker`, check DOCKER_HOST, {_LOCAL}"
    )


def _said_twice(machine: Machine, settings: str) -> tuple[str, str, str] | None:
    """What dockerd is told by a flag and in its file, which it does not take: flag, key, unit."""
    told = json.loads(machine.read(settings) or "{}")
    units = [f"{folder}/docker.service" for folder in _UNITS]
    for folder in _UNITS:
        drops = f"{folder}/docker.service.d"
        units += [f"{drops}/{name}" for name in sorted(machine.names(drops))]
    for unit in reversed(units):
        lines = re.findall(r"^ExecStart=(.+)$", machine.read(unit) or "", re.MULTILINE)
        for flag, key in _FLAGS.items() if lines and isinstance(told, dict) else ():
            if key in told and re.search(rf" {flag}[= ]", f"{lines[-1]} "):
                return flag, key, unit
        if lines:  # the last one counts
            break
    return None


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
    # The engine's own support asks for no more than the toolkit's hook.
    if "nvidia" in _json(done, dict) or machine.has("nvidia-container-runtime-hook"):
        return "nvidia"
    # Engines from 25 on, where it is switched on; older ones do not know the word.
    asked = machine.run("docker", "info", "--format", "{{json .CDISpecDirs}}", seconds=60)
    folders = map(str, _json(asked, list))
    specs = [f"{folder}/{name}" for folder in folders for name in machine.names(folder)]
    if any("nvidia.com/gpu" in (machine.read(path) or "") for path in specs):
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
