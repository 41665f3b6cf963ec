"""One `docker compose` command: the right image, GPUs and user; built first where inputs changed.

    python3 -m container.compose run --rm train fit --config configs/digits.yaml
    python3 -m container.compose build train

Reads CUDA, BASE_IMAGE, GPUS, CPUS, PRECISION and ACCELERATE from the environment. Each command is
printed as it is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from container import driver as drivers
from container import engine, foreground, gpus, overlay, table
from container.errors import HostError
from container.table import HOME
from doctor.machine import Machine

_FILE = "docker-compose.yml"
# What an image is made of. The code is not among it: Compose mounts the checkout's.
_INPUTS = ("Dockerfile", ".dockerignore", "container/image/*")
_PASSED = (
    "GPUS", "CPUS", "PRECISION", "ACCELERATE", "BASE_IMAGE", "APT_SNAPSHOT", "CONFIG", "DATA",
    "CACHE",
)  # fmt: skip
_SERVICES = ("train", "evaluate", "tensorboard", "dev")
# What a container sees of the checkout: flags whose value is a path, and the folder it must be in.
_FOLDERS = {
    "--config": ("configs", "runs"), "--verify": ("configs", "runs"), "--run": ("runs",),
    "--resume": ("runs",), "--data.root": ("data",),
}  # fmt: skip
# The image, and the cache of wheels that the next build takes: 12.7 GB measured.
ROOM = 14e9


def settings() -> dict[str, str]:
    """The environment, and what .env says of the same variables where that is silent."""
    path = HOME / ".env"
    rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (row.split("=", 1) for row in rows if "=" in row)
    filed = {name.strip(): value.strip().strip("\"'") for name, value in pairs}
    own = {n: v for n, v in filed.items() if n in (*_PASSED, "CUDA") and not os.environ.get(n)}
    return {**os.environ, **own}


def variables(environ: Mapping[str, str], line: table.Line) -> dict[str, str]:
    """What Compose is to know beyond its defaults."""
    given = {name: environ[name] for name in _PASSED if environ.get(name)}
    for name in ("DATA", "CACHE"):
        if name in given:  # Compose takes a bare name for a volume's, and makes what is not there
            given[name] = str(Path(given[name]).expanduser().absolute())
            if not Path(given[name]).is_dir():
                raise HostError(
                    f"{name}={environ[name]} is no directory", "make it, or name another", 2
                )
    who = {"UID": str(os.getuid()), "GID": str(os.getgid())}
    if engine.rootless():  # root inside is the caller outside, who may not lock all memory
        who = {"MEMLOCK": environ.get("MEMLOCK", "65536")}
    return {"COMPOSE_PROJECT_NAME": engine.project(), **who, "CUDA": line.name, **given}


def build_arguments(line: table.Line, service: str, base: str) -> dict[str, str]:
    """Labels for the image, INPUTS among them: a digest of all that it is made of."""
    locks = [line.lock] + ([HOME / "requirements" / "dev.txt"] if service == "dev" else [])
    digest = hashlib.sha256(f"{line.name} {base or line.image}".encode())
    for path in [*sorted(p for pattern in _INPUTS for p in HOME.glob(pattern)), *locks]:
        digest.update(path.name.encode() + path.read_bytes())
    torch = re.search(r"^torch==(\S+)", line.lock.read_text(), re.MULTILINE)
    return {
        "INPUTS": digest.hexdigest()[:16],
        "LOCK_SHA256": hashlib.sha256(line.lock.read_bytes()).hexdigest(),
        "TORCH": torch.group(1) if torch else "unknown",
        "REVISION": revision() or "unknown",
        "BASE_NAME": base or line.image,
        "CHECKOUT": engine.project(),
    }


def revision() -> str:
    """The commit, and + SHA-256 of what differs from it, as run.json names them; "" outside git."""
    commit = _git("rev-parse", "HEAD").decode()
    words = ("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv")
    changed = _git(*words)
    return commit + (f"+{hashlib.sha256(changed).hexdigest()}" if changed else "")


def is_current(image: str, inputs: str) -> bool:
    """Whether the image is there and made of these inputs."""
    label = '{{index .Config.Labels "dev.lockstep.inputs"}}'
    return _docker("image", "inspect", "--format", label, image).strip() == inputs


def run(words: list[str]) -> int:
    """Build where that is needed, then run a container in the foreground; returns its exit code.

    Raises:
        HostError: the host cannot do what is asked, or the build failed.
    """
    engine.answers()
    service = next((word for word in words if word in _SERVICES), "train")
    _check_paths(words[words.index(service) + 1 :] if service in words else [])
    environ = settings()
    environ.update(gpus.resolve(environ))
    host = drivers.look(Machine(environ=environ))
    # What does not compute on GPUs, or builds for elsewhere, is no matter of this host's driver.
    computes = service in ("train", "evaluate") and words[0] != "build"
    line = drivers.fitting_line(environ, host, any_host=not computes)
    files: list[str] = []
    extra: dict[str, str] = {}
    said = ""
    if service != "tensorboard" and words[0] != "build" and drivers.fits(line, host):
        files, extra, said = overlay.choose(environ, host, engine.handover() if host else None)
    if said:
        print(said, file=sys.stderr)
    known = {**variables(environ, line), **extra}
    labels = build_arguments(line, service, known.get("BASE_IMAGE", ""))
    wanted = words[0] == "build"
    if wanted or not is_current(f"{_image(service)}:{line.name}", labels["INPUTS"]):
        build(words if wanted else ["build", _builds(service)], {**known, **labels})
    if wanted:
        return 0
    for folder in ("runs", "data", ".cache"):
        (HOME / folder).mkdir(exist_ok=True)  # the engine would make them, as root
    commit = revision()
    if commit and service != "dev":
        known["LOCKSTEP_GIT"] = commit
    name = foreground.name(service)
    how = ["--name", name, *([] if foreground.terminal() else ["-T"])]
    at = words.index("run") + 1
    return foreground.run(_command(files, [*words[:at], *how, *words[at:]], known), name)


def build(words: list[str], known: dict[str, str]) -> None:
    """Build, with the engine's own progress, and say what stood in the way.

    Raises:
        HostError: the build failed.
    """
    if subprocess.run(_command([], words, known), check=False).returncode == 0:
        # What this build replaced has no name any more, and takes gigabytes.
        ours = f"label=dev.lockstep.checkout={engine.project()}"
        _docker("image", "prune", "--force", "--filter", ours)
        return
    base = known.get("BASE_IMAGE") or next(
        line.image for line in table.lines() if line.name == known["CUDA"]
    )
    if not _docker("image", "inspect", base) and not _docker("pull", "--quiet", base):
        raise HostError(
            f"the base image {base} cannot be fetched",
            "check the network and Docker's proxy, or name a mirror's: BASE_IMAGE=…",
        )
    root = Path(_docker("info", "--format", "{{.DockerRootDir}}").strip() or "/")
    free = shutil.disk_usage(root).free if root.exists() else ROOM
    if free < ROOM:
        raise HostError(
            f"the build failed, and {root} has {free / 1e9:.0f} GB left of the"
            f" {ROOM / 1e9:.0f} GB that a build may take",
            "`docker system prune`, or give Docker a larger disk (data-root)",
        )
    raise HostError("the image could not be built", "the lines above say why")


def tag() -> str:
    """The name of the training image for this host's CUDA line."""
    return (
        f"{_image('train')}:{drivers.fitting_line(settings(), drivers.look(), any_host=True).name}"
    )


def _check_paths(words: list[str]) -> None:
    """Refuse paths that a container cannot see: a run written there would be lost with it."""
    if words[:1] == ["reproduce"] and len(words) > 1:
        words = ["--run", words[1]]
    pairs = zip(words, [*words[1:], "--"])
    for flag, value in [*pairs, *(word.split("=", 1) for word in words if "=" in word)]:
        folders = _FOLDERS.get(flag)
        if folders is None or value.startswith("--"):
            continue
        if Path(os.path.normpath(value)).parts[:1] not in [(folder,) for folder in folders]:
            way = f"a path below {folders[0]}/"
            if folders == ("data",):
                way = "DATA=DIR, which stands in data/ then, and --data.root data"
            raise HostError(
                f"{flag} {value} is outside what the container sees",
                f"use {way}, or train without a container: ENGINE=local",
                2,
            )


def _image(service: str) -> str:
    return "lockstep-dev" if service == "dev" else "lockstep"


def _builds(service: str) -> str:
    return "dev" if service == "dev" else "train"


def _command(files: list[str], words: list[str], known: Mapping[str, str]) -> list[str]:
    chosen = [word for name in [_FILE, *files] for word in ("-f", name)] if files else []
    shown = [f"{name}={value}" for name, value in known.items()]
    command = ["env", *shown, "docker", "compose", *chosen, *words]
    print(shlex.join(command), flush=True)
    return command


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _git(*words: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(HOME), *words], capture_output=True, check=False)
    except OSError:
        return b""
    return done.stdout.strip() if done.returncode == 0 else b""


def main() -> int:
    """Run the words of the command line."""
    try:
        return run(sys.argv[1:])
    except HostError as error:
        print(error, file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
