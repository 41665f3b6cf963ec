"""The inside half, started from the host: in the image, or in the local environment."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from doctor import finding
from doctor.finding import Finding
from doctor.link import FREEZES
from host import INSIDE, cuda, docker, image
from host.errors import LockstepError
from host.machine import Machine

_LIMIT = 900.0
_END = 20.0  # seconds to end in, once it was told


def examine(
    machine: Machine,
    verify: str | None,
    like: str | None,
    known: list[Finding],
    *,
    on: str | None = None,
    minutes: float = 0,
) -> list[Finding]:
    """What torch sees; a skip where there is nothing to see it with yet.

    Args:
        verify: an experiment to look at as well.
        on: a card that is not here, to look at that experiment on, and at nothing else.
        minutes: of products on each GPU, or on the CPU, after all that.
        like: a run whose bits this machine is to give.
        known: what the host's half found; what is the same inside is not said twice.
    """
    if any(f.name == FREEZES and f.status == "fail" for f in known):
        why = "not started: the first load may freeze this machine"
        return [finding.skip("inside", f"{why}; python -m doctor.inside looks all the same")]
    asked = {"experiment": verify, "run": like, "stress": f"{minutes:g} min" * bool(minutes)}
    words = ["--json", *(["--verify", verify] if verify else [])]
    words += ["--like", like] if like else []
    words += ["--stress", f"{minutes:g}"] if minutes else []
    if on:  # nothing of it is to be started here on GPUs
        words += ["--on", on, "--cards", machine.environ.get("GPUS") or "1"]
        words += ["--half"] * (machine.environ.get("PRECISION", "no") in ("fp16", "bf16"))
        plain = {"GPUS": "", "ACCELERATE": "", "PRECISION": "", "CPUS": "1"}
        machine = Machine(machine.root, {**machine.environ, **plain}, machine.home)
    try:
        where, _ = docker.choose(machine.environ.get("ENGINE") or "auto")
        if where == "docker":
            line = cuda.fitting_line(machine.environ, cuda.look(machine), any_host=True)
            labels = image.labels(
                line,
                "train",
                machine.environ.get("BASE_IMAGE", ""),
                snapshot=machine.environ.get("APT_SNAPSHOT", ""),
            )
            if not image.is_current(image.name("train", line.name), labels["INPUTS"]):
                return _nothing("the image is not built yet: make image builds it", asked)
            command = [
                sys.executable,
                "-m",
                "container.compose",
                "run",
                "--rm",
                "train",
                "doctor",
                *words,
            ]
        else:
            python = Path(machine.home) / ".venv" / "bin" / "python"
            inside = INSIDE.exists()
            if not (inside or python.exists()):
                return _nothing("nothing is installed yet: make ready does it", asked)
            command = [sys.executable if inside else str(python), "-m", "doctor.inside", *words]
    except LockstepError as error:
        return [finding.skip("inside", error.problem)]
    if minutes:
        print(f"computing for {minutes:g} min, after the other checks", file=sys.stderr)
    found = _started(command, machine, _LIMIT + 2 * 60 * minutes)
    said = {f.name: f for f in known}
    return [
        replace(f, name=f"{f.name} inside") if f.name in said else f
        for f in found
        if f.name not in said or (f.status, f.seen) != (said[f.name].status, said[f.name].seen)
    ]


def _nothing(why: str, asked: dict[str, str | None]) -> list[Finding]:
    """There is nothing yet to see it with; who asked for more than a look is told so."""
    found = [
        finding.warn(name, f"{given}: not done", why, "do that, and ask again")
        for name, given in asked.items()
        if given
    ]
    return found or [finding.skip("inside", why)]


def _started(command: list[str], machine: Machine, limit: float) -> list[Finding]:
    with subprocess.Popen(
        command,
        cwd=machine.home,
        env={**machine.environ},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as done:
        try:
            out, err = done.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            done.terminate()  # which a container is told of
            with suppress(subprocess.TimeoutExpired):
                done.communicate(timeout=_END)
            done.kill()
            return [_broken(f"no answer within {limit:g} s", command)]
    # The command that make prints stands before it.
    start = out.find("[\n {")
    try:
        return finding.from_json(out[max(0, start) :])
    except ValueError:
        rows = [row for row in err.splitlines() if row.strip()] or [f"code {done.returncode}"]
        return [_broken(rows[-1][:200], command)]


def _broken(seen: str, command: list[str]) -> Finding:
    fix = "run it by hand: " + shlex.join(command)
    return finding.fail("inside", seen, "the environment does not start", fix)
