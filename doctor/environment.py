"""The environment that training runs in without an engine: .venv, or what makes one."""

from __future__ import annotations

import re

from doctor import mounts, unimported
from doctor.engine import trains
from doctor.finding import Finding, fail, ok, skip, warn
from host import INSIDE, nvidia, visible
from host.machine import Machine

_OLDEST_GLIBC = 28  # 2.28: manylinux_2_28
_BLACKWELL = (12, 8)  # the first CUDA whose wheels have its kernels, and none before Turing's


def examine(machine: Machine) -> Finding:
    """There is something to train in without an engine: .venv, or what makes one."""
    if trains(machine) or machine.exists(str(INSIDE)):
        return skip("local environment", "training runs in a container")
    own = f"{machine.home}/.venv/bin/python"
    if machine.exists(own):
        # Where it is first in PATH, whoever asks for python gets it.
        asked = "python" if machine.place("python") == own else own
        wrong = unimported.of_interpreter(machine.run(asked, "-c", ""))
        if wrong is not None:
            seen, why, fix = wrong
            return fail("local environment", f".venv's python {seen}", why, f"{fix}: rm -r .venv")
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
