"""One `docker compose` command: the right image, GPUs and user; built first where inputs changed.

    python3 -m container.compose run --rm train fit --config configs/digits.yaml
    python3 -m container.compose build train

Reads CUDA, BASE_IMAGE, GPUS, CPUS, PRECISION and ACCELERATE from the environment. Each command is
printed as it is run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from container import foreground, overlay, packages, paths
from host import CONTAINER, HOME, TOLD, cuda, docker, git, image, keys, nodes, selection, settings
from host import lines as table
from host import port as ports
from host.dockerd import LOCAL
from host.errors import HostError, LockstepError, UsageError
from host.machine import Machine
from host.nodes import Nodes
from host.text import prepare_output, printable

_FILE = "docker-compose.yml"
_TRAINING = ("PRECISION", "ACCELERATE")
_SERVICES = ("train", "evaluate", "predict", "tensorboard", "dev")
_COMPUTING = ("train", "evaluate", "predict")
# Verbs that have something to tell of runs: on the standard output it stands alone.
_TELLING = ("evaluate", "predict", "runs", "compare", "scaling")


def variables(environ: Mapping[str, str], line: table.Line) -> dict[str, str]:
    """What Compose is to know beyond its defaults."""
    # What is empty was overruled: .env must not say it again.
    overruled = {name: "" for name in (*settings.WHERE, "SHARES") if environ.get(name) == ""}
    given = {name: environ[name] for name in settings.PASSED if environ.get(name)}
    for name in ("DATA", "CACHE"):
        if name in given:  # Compose takes a bare name for a volume's, and makes what is not there
            given[name] = str(Path(given[name]).expanduser().absolute())
            if not Path(given[name]).is_dir():
                raise UsageError(
                    f"{name}={environ[name]} is no directory", "make it, or name another"
                )
    for name in [f"{key}_FILE" for key in keys.NAMES]:
        if name in given:
            given[name] = str(Path(given[name]).expanduser().absolute())
            if not Path(given[name]).is_file():
                raise UsageError(f"{name}={environ[name]} is no file", "name a file with the key")
    who = {"UID": str(os.getuid()), "GID": str(os.getgid())}
    if docker.rootless():  # root inside is the caller outside, who may not lock all memory
        who = {"MEMLOCK": environ.get("MEMLOCK", "65536")}
    return {
        "COMPOSE_PROJECT_NAME": docker.project(),
        **who,
        "CUDA": line.name,
        **overruled,
        **given,
    }


def processes(environ: Mapping[str, str], machines: Nodes, gpus: int) -> dict[str, str]:
    """What the cluster says of the processes of each machine, in our variables.

    Nothing where somebody says it here, or where all GPUs are meant.
    """
    said = any(environ.get(name) for name in ("GPUS", "CPUS", "ACCELERATE"))
    if said or machines.processes is None or 0 < gpus <= machines.processes:
        return {}
    return {"GPUS" if gpus else "CPUS": str(machines.processes)}


def run(words: list[str]) -> int:
    """Build where that is needed, then run a container in the foreground; returns its exit code.

    Raises:
        HostError: the host cannot do what is asked, or the build failed.
    """
    docker.answers()
    service = next((word for word in words if word in _SERVICES), "train")
    paths.check(words[words.index(service) + 1 :] if service in words else [])
    environ = settings.read()
    environ.update(selection.resolve(environ))
    host = cuda.look(Machine(environ=environ))
    # What does not compute on GPUs, or builds for elsewhere, is no matter of this host's driver.
    computes = service in _COMPUTING and words[0] != "build"
    line = cuda.fitting_line(environ, host, any_host=not computes)
    machines = nodes.told(environ) if service == "train" and "fit" in words else None
    if machines is not None:
        environ.update(processes(environ, machines, len(host.gpus) if host else 0))
    files: list[str] = []
    extra: dict[str, str] = {}
    said = ""
    if service != "tensorboard" and words[0] != "build" and cuda.fits(line, host):
        # Who lints or tests need not have what a training is told.
        about = environ if computes else {n: v for n, v in environ.items() if n not in _TRAINING}
        files, extra, said = overlay.choose(about, host, docker.handover() if host else None)
    if said:
        print(said, file=sys.stderr)
    if machines is not None:
        # NCCL and gloo take free ports, and MASTER_ADDR is the host's.
        extra = {**extra, **machines.variables, "NETWORK": "host"}
        files = [*files, *overlay.infiniband()]
    known = {**variables(environ, line), **extra}
    labels = image.labels(
        line, service, known.get("BASE_IMAGE", ""), snapshot=known.get("APT_SNAPSHOT", "")
    )
    wanted = words[0] == "build"
    if wanted or not image.is_current(image.name(service, line.name), labels["INPUTS"]):
        target = "dev" if service == "dev" else "train"
        if not wanted and (HOME / ".venv/bin/python").exists():
            # An engine that came up since changes where everything runs, and takes minutes first.
            print("an image is built first; ENGINE=local goes on in .venv", file=sys.stderr)
        build(words if wanted else ["build", target], {**known, **labels})
    if wanted:
        return 0
    for folder in ("runs", "data", ".cache"):
        (HOME / folder).mkdir(exist_ok=True)  # the engine would make them, as root
    commit = git.told()
    if commit and service != "dev":
        known[git.VARIABLE] = commit
    name = foreground.name(service)
    how = ["--name", name, "--env", f"{CONTAINER}={name}"]
    how += ["--env", TOLD] if os.environ.get(TOLD) else []
    how += [word for name in settings.libraries(os.environ) for word in ("--env", name)]
    how += [] if foreground.terminal() else ["-T"]
    # The checkout itself is mounted for `dev`: what is put into it would stay there.
    how += packages.mounts(environ.get("CODE", ""), words) if computes else []
    at = words.index("run") + 1
    if service == "tensorboard":  # it names its own address, which is the container's
        port = known.get("TENSORBOARD_PORT", "6006")
        ports.check(port)
        print(f"TensorBoard will be at http://127.0.0.1:{port}")
    return foreground.run(_command(files, [*words[:at], *how, *words[at:]], known), name)


def build(words: list[str], known: dict[str, str]) -> None:
    """Build, with the engine's own progress, and say what stood in the way.

    Raises:
        HostError: the build failed.
    """
    # On the standard output, whoever is built for may have something to tell.
    if subprocess.run(_command([], words, known), stdout=sys.stderr, check=False).returncode == 0:
        # What this build replaced has no name any more, and takes gigabytes.
        ours = f"label=dev.lockstep.checkout={docker.project()}"
        _docker("image", "prune", "--force", "--filter", ours)
        return
    base = known.get("BASE_IMAGE") or next(
        line.image for line in table.lines() if line.name == known["CUDA"]
    )
    if not _docker("image", "inspect", base) and not _docker("pull", "--quiet", base):
        raise HostError(
            f"the base image {base} cannot be fetched",
            f"check the network and Docker's proxy, name a mirror's: BASE_IMAGE=…, {LOCAL}",
        )
    root = Path(_docker("info", "--format", "{{.DockerRootDir}}").strip() or "/")
    free = shutil.disk_usage(root).free if root.exists() else image.ROOM
    if free < image.ROOM:
        raise HostError(
            f"the build failed, and {root} has {free / 1e9:.0f} GB left of the"
            f" {image.ROOM / 1e9:.0f} GB that a build may take",
            f"`docker system prune`, give Docker a larger disk (data-root), {LOCAL}",
        )
    raise HostError("the image could not be built", "the lines above say why; mend it, " + LOCAL)


def tag() -> str:
    """The name of the training image for this host's CUDA line."""
    line = cuda.fitting_line(settings.read(), cuda.look(), any_host=True)
    return image.name("train", line.name)


def _command(files: list[str], words: list[str], known: Mapping[str, str]) -> list[str]:
    chosen = [word for name in [_FILE, *files] for word in ("-f", name)] if files else []
    shown = [f"{name}={value}" for name, value in known.items()]
    command = ["env", *shown, "docker", "compose", *chosen, *words]
    aside = sys.stderr if {"build", *_TELLING} & set(words) else sys.stdout
    print(printable(shlex.join(command)), file=aside, flush=True)
    return command


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def main() -> int:
    """Run the words of the command line."""
    prepare_output()
    try:
        return run(sys.argv[1:])
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
