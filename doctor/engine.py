"""Docker, and the environment without it."""

from __future__ import annotations

import re
from dataclasses import replace

from doctor import distribution, log, mounts
from doctor.finding import Finding, fail, ok, skip, warn
from host import INSIDE, cuda, docker, nvidia, visible
from host import image as images
from host.errors import LockstepError
from host.machine import Machine

_OLDEST_GLIBC = 28  # 2.28: manylinux_2_28
_THREADS_SINCE = (20, 10, 10)
_BLACKWELL = (12, 8)  # the first CUDA whose wheels have its kernels, and none before Turing's


def engine(machine: Machine) -> Finding:
    """Docker and Compose answer to this user."""
    wanted = machine.environ.get("ENGINE") or "auto"
    if wanted == "local":
        return skip("engine", "ENGINE=local")
    try:
        version = docker.answers(machine)
    except LockstepError as error:
        if wanted == "auto" and (old := _old(machine)):
            return old
        if wanted == "docker":
            return fail("engine", error.problem, "ENGINE=docker asks for it", error.fix)
        if not machine.has("docker"):
            return skip("engine", f"{error.problem}: training runs in a local environment")
        why = "training falls back to a local environment"
        fix = error.fix
        if log.last(machine, r'operation="userns_create".*comm="rootlesskit"'):
            why = "AppArmor lets rootless Docker make no user namespace: operation not permitted"
            fix = (
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and the same in"
                " /etc/sysctl.d; or an AppArmor profile for rootlesskit's own path; then systemctl"
                f" --user start docker; {fix}"
            )
        elif machine.environ.get("DOCKER_HOST", "").startswith("unix:///run/user/"):
            fix = (
                "systemctl --user start docker; so that it stays after you log out: sudo loginctl"
                f" enable-linger $USER; where it does not start, journalctl --user -u docker; {fix}"
            )
        return warn("engine", error.problem, why, fix)
    return _old(machine) or ok("engine", f"Docker {version}{_where(machine)}")


def _old(machine: Machine) -> Finding | None:
    try:
        version = docker.of(machine)
    except LockstepError:
        return None
    if not _starts_no_threads(machine, version):
        return None
    return warn(
        "engine",
        f"Docker {version}{_where(machine)}, older than 20.10.10",
        "programs of newer systems may start no thread in its containers (clone3)",
        "update Docker Engine, with docker-compose-plugin; or train without a container:"
        " ENGINE=local",
    )


def _starts_no_threads(machine: Machine, version: str) -> bool:
    """Whether this engine says "not permitted" to a call that glibc 2.34 and newer start threads
    with, where later ones say that there is none: https://github.com/moby/moby/pull/42681.
    """
    # Distributions that mended theirs: Debian says so in the version, Ubuntu does not.
    if version == "20.10.7" and "ubuntu" in distribution.names(machine):
        return False
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(-ce)?$", version)
    return found is not None and tuple(map(int, found.groups()[:3])) < _THREADS_SINCE


def _where(machine: Machine) -> str:
    """Which engine it is, where it is not the usual one: each has images of its own."""
    place = machine.environ.get("DOCKER_HOST")
    if place:
        return f" at {place}"
    context = machine.run("docker", "context", "show").out.strip()
    return f" in the context {context}" if context not in ("", "default") else ""


def answers(machine: Machine) -> bool:
    """Whether an engine answers that is to be used, be it without the Compose that we need."""
    if machine.environ.get("ENGINE") == "local":
        return False
    try:
        return bool(docker.of(machine))
    except LockstepError:
        return False


def trains(machine: Machine) -> bool:
    """Whether training runs in a container: where Compose is too old, it does not."""
    try:
        return answers(machine) and bool(docker.answers(machine))
    except LockstepError:
        return False


def weighed(machine: Machine, found: Finding) -> Finding:
    """What containers lack, which stops nothing where none trains yet."""
    asked = machine.environ.get("ENGINE") == "docker"
    if found.status != "fail" or asked or not answers(machine) or trains(machine):
        return found
    return replace(found, status="warn")


def told(machine: Machine, field: str) -> str:
    """A field of what the engine says of itself."""
    return machine.run("docker", "info", "--format", f"{{{{.{field}}}}}").out.strip()


def environment(machine: Machine) -> Finding:
    """There is something to train in without an engine: .venv, or what makes one."""
    if trains(machine) or machine.exists(str(INSIDE)):
        return skip("local environment", "training runs in a container")
    if machine.exists(f"{machine.home}/.venv/bin/python"):
        return _other_torch(machine) or ok("local environment", ".venv")
    libc = re.fullmatch(
        r"glibc 2\.(\d{1,3})", machine.run("getconf", "GNU_LIBC_VERSION").out.strip()
    )
    if libc and int(libc.group(1)) < _OLDEST_GLIBC:
        return fail(
            "local environment",
            f"{libc.group()}, and PyTorch's wheels want 2.{_OLDEST_GLIBC} or newer",
            "none can be installed on this system",
            "install Docker Engine, and train in a container; or a newer system",
        )
    return _without_links(machine) or _makes(machine)


def _makes(machine: Machine) -> Finding:
    """A program that makes .venv."""
    lacking = None
    for program in ("uv", "python3.13", "python3.12", "python3.11", "python3"):
        if program == "uv" and machine.has("uv"):
            return ok("local environment", "uv makes it")
        found = re.match(r"Python (\d+)\.(\d+)", machine.run(program, "--version").out)
        if found and (int(found.group(1)), int(found.group(2))) >= (3, 11):
            bare = _without_pip(machine, program, found.group())
            if bare is None:
                return ok("local environment", f"{found.group()} makes it")
            lacking = lacking or bare
    return lacking or fail(
        "local environment",
        "neither Docker, nor uv, nor Python 3.11",
        "nothing to train in",
        "install Docker Engine, or uv: https://docs.astral.sh/uv",
    )


def _without_links(machine: Machine) -> Finding | None:
    """The checkout is on a file system that has no symbolic links, of which .venv is made."""
    _, told, system = mounts.of(machine, machine.home)
    linked = re.search(r"\b(?:mfsymlinks|unix|posix|symlink=(?!none))", ",".join(told)) is not None
    shared = system in ("cifs", "smb3") and not linked
    if system not in ("exfat", "vfat", "msdos") and not shared:
        return None
    return fail(
        "local environment",
        f"this folder is on {system}, which has no symbolic links",
        ".venv cannot be made here: Operation not permitted",
        "have the checkout on a disk with ext4, xfs or btrfs"
        + "; or mount the share with mfsymlinks" * shared,
    )


def _without_pip(machine: Machine, program: str, python: str) -> Finding | None:
    """Debian and its kin have what makes .venv in a package of its own."""
    number = re.search(r"3\.\d+", python)
    folder = f"/usr/lib/python{number.group() if number else ''}"
    names = machine.names(folder)
    if "venv" not in names or "ensurepip" in names or not machine.exists("/etc/debian_version"):
        return None
    if machine.run(program, "-m", "ensurepip", "--version").code == 0:  # conda's, or its like
        return None
    return fail(
        "local environment",
        f"{python} has no ensurepip, which makes .venv",
        "nothing to train in",
        f"sudo apt-get install python{number.group() if number else '3'}-venv; or install uv:"
        " https://docs.astral.sh/uv",
    )


def _other_torch(machine: Machine) -> Finding | None:
    """The torch in .venv is a build that cannot use these GPUs."""
    lib = f"{machine.home}/.venv/lib"
    places = [f"{lib}/{name}/site-packages/torch/version.py" for name in machine.names(lib)]
    text = "\n".join(machine.read(place) or "" for place in places)
    found = re.search(r"^__version__ = '([\w.]{1,60}\+(?:cpu|cu(\d{2,3})))'", text, re.MULTILINE)
    gpus = visible.seen(machine)
    if found is None or not gpus:
        return None
    strange = [
        gpu.name
        for gpu in gpus
        if found.group(2)
        and gpu.capability
        and not _runs(found.group(1), found.group(2), gpu.capability)
    ]
    if found.group(2) and not strange:
        return None
    return warn(
        "local environment",
        f"torch {found.group(1)} in .venv",
        f"it has no kernels for the {strange[0]}" if strange else "this build knows no GPU",
        "rm -rf .venv; make train installs the torch of the lock",
    )


def _runs(version: str, build: str, capability: nvidia.Capability) -> bool:
    """Whether PyTorch's wheels for CUDA 12.4, as `124`, have kernels for a GPU.

    https://github.com/pytorch/pytorch/blob/main/RELEASE.md
    """
    if build == "128" and re.match(r"2\.(?:[89]|10)\.", version):
        return capability >= (7, 0)
    if (int(build[:-1]), int(build[-1])) < _BLACKWELL:
        return capability < (10, 0)
    return capability >= (7, 5)


def image_here(machine: Machine) -> str | None:
    """The image that would train here, where it is built; current or not."""
    try:
        line = cuda.fitting_line(machine.environ, cuda.look(machine), any_host=True).name
    except LockstepError:
        return None
    image = images.name("train", line)
    answer = machine.run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    return image if answer.code == 0 else None
