"""Docker, its way to the GPUs, and the environment without it."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import INSIDE, cuda, docker, nvidia
from host import image as images
from host.errors import LockstepError
from host.machine import Machine

# First release without known holes through which a container gets at the host: CVE-2024-0132
# (mended in 1.16.2), CVE-2025-23359 (1.17.4), CVE-2025-23266 (1.17.8), CVE-2026-24260 (1.19.1).
_SAFE_TOOLKIT = (1, 19, 1)
_CONFIGURE = (
    "sudo apt-get install nvidia-container-toolkit; sudo nvidia-ctk runtime configure"
    " --runtime=docker && sudo systemctl restart docker"
)
_CONFIGURE_ROOTLESS = (
    "sudo apt-get install nvidia-container-toolkit; nvidia-ctk runtime configure --runtime=docker"
    " --config=$HOME/.config/docker/daemon.json && systemctl --user restart docker;"
    " sudo nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=true"
)


def engine(machine: Machine) -> Finding:
    """Docker and Compose answer to this user."""
    wanted = machine.environ.get("ENGINE") or "auto"
    if wanted == "local":
        return skip("engine", "ENGINE=local")
    try:
        return ok("engine", f"Docker {docker.answers(machine)}")
    except LockstepError as error:
        if wanted == "docker":
            return fail("engine", error.problem, "ENGINE=docker asks for it", error.fix)
        if not machine.has("docker"):
            return skip("engine", f"{error.problem}: training runs in a local environment")
        why = "training falls back to a local environment"
        return warn("engine", error.problem, why, error.fix)


def _answers(machine: Machine) -> bool:
    return engine(machine).status == "ok"


def toolkit(machine: Machine) -> Finding:
    """Docker can hand GPUs to containers."""
    _, gpus = nvidia.ask(machine)
    if not gpus or not _answers(machine):
        return skip("toolkit", "no GPU" if not gpus else "no engine")
    way = docker.handover(machine)
    if way is None:
        return fail(
            "toolkit",
            "Docker has no NVIDIA Container Toolkit",
            "containers train on the CPU, without an error",
            _configure(machine),
        )
    said = machine.run("nvidia-ctk", "--version").out
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", said)
    word = {"nvidia": "runtime", "cdi": "CDI"}[way]
    if found is None:
        return ok("toolkit", word)
    version = ".".join(found.groups())
    if tuple(int(part) for part in found.groups()) < _SAFE_TOOLKIT:
        return warn(
            "toolkit",
            f"{version} ({word})",
            "before 1.19.1 a container can get at the host: CVE-2025-23266, CVE-2026-24260",
            "sudo apt-get update && sudo apt-get install --only-upgrade nvidia-container-toolkit",
        )
    return ok("toolkit", f"{version} ({word})")


def _configure(machine: Machine) -> str:
    said = machine.run("docker", "info", "--format", "{{.SecurityOptions}}").out
    return _CONFIGURE_ROOTLESS if "rootless" in said else _CONFIGURE


def in_container(machine: Machine) -> Finding:
    """A container sees the GPUs, in the image that trains."""
    name = "GPUs in a container"
    _, gpus = nvidia.ask(machine)
    if not gpus or not _answers(machine):
        return skip(name, "no GPU" if not gpus else "no engine")
    way = docker.handover(machine)
    if way is None:
        return skip(name, "no toolkit")
    image = _image(machine)
    if image is None:
        return skip(name, "no image yet: make image")
    given = ["--gpus", "all"] if way == "nvidia" else ["--device", "nvidia.com/gpu=all"]
    words = ["docker", "run", "--rm", "--network=none", *given, "--entrypoint", "nvidia-smi"]
    answer = machine.run(*words, image, "-L", seconds=60)
    count = sum(row.startswith("GPU ") for row in answer.out.splitlines())
    if answer.code == 0 and count == len(gpus):
        return ok(name, f"{count}")
    if "mismatch" in answer.said:
        fix, why = "sudo reboot", "the driver was upgraded under the engine"
    elif "unresolvable CDI" in answer.said:
        fix = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        why = "the CDI description is older than the driver"
    elif "Failed to initialize NVML" in answer.said:
        why = "the container may not open the devices (cgroup or SELinux)"
        fix = (
            "sudo nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=false"
            " && sudo systemctl restart docker"
        )
    else:
        fix, why = _configure(machine), "training in it would stop, or run on the CPU"
    rows = [row for row in answer.said.splitlines() if row.strip()]
    seen = rows[-1][:160] if answer.code and rows else f"{count} of {len(gpus)}"
    return fail(name, seen, why, fix)


def room(machine: Machine) -> Finding:
    """The engine's disk has room for what a build takes."""
    if not _answers(machine):
        return skip("engine's disk", "no engine")
    root = machine.run("docker", "info", "--format", "{{.DockerRootDir}}").out.strip()
    free = machine.free(root) if root else None
    if free is None:
        return skip("engine's disk", "elsewhere: the engine is on another machine")
    seen = f"{free / 1e9:.0f} GB free in {root}"
    if free < images.ROOM and _image(machine) is None:
        return fail(
            "engine's disk",
            seen,
            f"building the image takes {images.ROOM / 1e9:.0f} GB",
            "docker system prune, or give Docker a larger disk (data-root in daemon.json)",
        )
    if free < 2e9:
        return warn("engine's disk", seen, "containers cannot write", "docker system prune")
    return ok("engine's disk", seen)


def environment(machine: Machine) -> Finding:
    """There is something to train in without an engine: .venv, or what makes one."""
    if _answers(machine) or machine.exists(str(INSIDE)):
        return skip("local environment", "training runs in a container")
    if machine.exists(f"{machine.home}/.venv/bin/python"):
        return ok("local environment", ".venv")
    for program in ("uv", "python3.13", "python3.12", "python3.11", "python3"):
        if program == "uv" and machine.has("uv"):
            return ok("local environment", "uv makes it")
        found = re.match(r"Python (\d+)\.(\d+)", machine.run(program, "--version").out)
        if found and (int(found.group(1)), int(found.group(2))) >= (3, 11):
            return ok("local environment", f"{found.group()} makes it")
    return fail(
        "local environment",
        "neither Docker, nor uv, nor Python 3.11",
        "nothing to train in",
        "install Docker Engine, or uv: https://docs.astral.sh/uv",
    )


def _image(machine: Machine) -> str | None:
    """The image that would train here, where it is built; current or not."""
    try:
        line = cuda.fitting_line(machine.environ, cuda.look(machine), any_host=True).name
    except LockstepError:
        return None
    image = images.name("train", line)
    answer = machine.run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    return image if answer.code == 0 else None
