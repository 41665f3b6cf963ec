"""The run directory: which one, and whether it may be used."""

import os
import re
import shlex
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from host import TOLD
from host.errors import CheckpointError, HostError, UsageError, nearest
from host.text import printable
from train.config import Config
from train.experiment import signature
from train.record import documents, files

RUNS = Path("runs")
STATE = "state.json"
"""What a checkpoint says beside its tensors."""
_ASIDE = re.compile(r"\.step-\d+\.\d+(\.old)?")  # the step, and the process that wrote it


def choose(config: Config, run: Path | None, resume: str | bool | None) -> Path:
    """The run directory to use; it is made where it is not there yet.

    Args:
        run: the directory that --run names, if any.
        resume: --resume's value: a directory, True without one, None where it was not given.

    Raises:
        UsageError: there is nothing to continue.
        HostError: the directory cannot be written.
    """
    if isinstance(resume, str):
        if run is not None and run.resolve() != Path(resume).resolve():
            raise UsageError(f"--run {run} and --resume {resume} differ", "name one of them")
        run = Path(resume)
        if not (run / "run.json").exists():
            raise UsageError(
                f"there is no run in {run} to continue", "start one with --run, without --resume"
            )
        return run
    if run is not None:
        there = (run / "run.json").exists()
        if resume and not there:
            _warn_of_misspelt(run)
        return run if there else _writable(_unused(run))
    if resume:
        return _newest_unfinished(RUNS / config.name)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    new = RUNS / config.name / f"{stamp}-{signature(config)}"
    while True:
        try:
            return _writable(new, fresh=True)
        except FileExistsError:  # another start in the same second
            new = new.with_name(f"{new.name}+")


def _warn_of_misspelt(run: Path) -> None:
    """Say which run may be meant, where none is to be continued and a new one begins."""
    # Those of a loop differ in numbers: RUN=runs/seed-1, RUN=runs/seed-2.
    own = re.sub("[0-9]+", "#", run.name)
    there = [each.parent.name for each in run.parent.glob("*/run.json")]
    others = [name for name in there if re.sub("[0-9]+", "#", name) != own]
    near = nearest(run.name, others, like=0.8)
    if near:
        print(
            printable(f"warning: there is no run in {run} to continue{near} A new one begins"),
            file=sys.stderr,
        )


def continued(run: Path, resume: str | bool | None) -> bool:
    """Whether `run` holds a run that is to be continued. To be asked while holding its lock.

    Raises:
        UsageError: it holds one that is not.
    """
    held = (run / "run.json").exists()
    if held and not resume:
        done = status(run) == "finished"
        raise UsageError(
            f"{run} already holds {'a finished' if done else 'an unfinished'} run",
            "choose another --run, or remove that directory"
            if done
            else "add --resume to go on, or choose another --run",
        )
    return held


def go_on(run: Path) -> str:
    """What one types to go on with `run`, as this one was started."""
    name = shlex.quote(str(run))
    words = shlex.join([*shlex.split(os.environ.get(TOLD, "")), f"RUN={run}", "ARGS=--resume"])
    return f"to go on: make train {words} (without make: --run {name} --resume)"


def status(run: Path) -> str | None:
    """finished, stopped or failed, as the run's result says; None before there is one, or where it
    is damaged: the end of a training writes it anew.
    """
    with suppress(CheckpointError):
        return (documents.result(run) or {}).get("status")
    return None


def forget_unused(run: Path) -> None:
    """Remove a directory that we named and nothing was written into."""
    if run.parent.parent == RUNS:
        with suppress(OSError):  # it is not empty
            run.rmdir()
            run.parent.rmdir()


def name_one(run: Path) -> str:
    """What to do about a path that is no run: one in it may be meant, or one called alike."""
    inside = sorted(run.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    if inside:
        return f"name a run directory; the newest in it is {inside[-1].parent}"
    beside = [str(file.parent) for file in run.parent.glob("*/run.json")]
    return f"name a run directory; make runs lists them{nearest(str(run), beside, like=0.8)}"


def newest() -> Path:
    """The run that was started last, of any name.

    Raises:
        UsageError: there is none.
    """
    held = [path.parent for path in RUNS.glob("**/run.json")]
    if not held:
        raise UsageError(f"there is no run in {RUNS}", "train one, or name its directory: --run")
    return max(held, key=lambda run: (run / "run.json").stat().st_mtime)


def _newest_unfinished(runs: Path) -> Path:
    held = sorted((p.parent for p in runs.glob("*/run.json")), key=lambda p: p.name, reverse=True)
    for run in held:
        if status(run) != "finished":
            return run
    raise UsageError(
        f"there is no unfinished run in {runs}", "start one without --resume, or name its directory"
    )


def _unused(run: Path) -> Path:
    """The same, if it is not there, or empty but for what a start that failed leaves."""
    try:
        others = [p.name for p in run.iterdir() if p.name != "config.yaml" and p.name[0] != "."]
    except OSError:  # not there, no directory, or not ours to read: said by who makes it
        return run
    if others:
        raise UsageError(
            f"the directory {run} holds {min(others)} and no run",
            "name a new or empty directory: --run",
        )
    return run


def _writable(run: Path, *, fresh: bool = False) -> Path:
    try:
        if fresh and run.exists():
            raise FileExistsError
        files.make_directory(run)
        probe = run / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except FileExistsError:
        if fresh:
            raise
        raise UsageError(f"{run} is a file", "choose another --run") from None
    except OSError as error:
        raise HostError(
            f"the run directory {run} cannot be written: {error.strerror}",
            "choose another --run, or mend its permissions",
        ) from error
    return run


def checkpoints(run: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run / "checkpoints"


def name_of(step: int) -> str:
    """The directory name of the checkpoint of `step`."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step that a checkpoint directory's name says; None for what has another name."""
    digits = path.name.removeprefix("step-")
    ours = digits.isdecimal() and digits.isascii() and path.name == name_of(int(digits))
    return int(digits) if ours else None


def leftovers(root: Path) -> list[Path]:
    """What writers of checkpoints that are dead by now have left beside them."""
    return [path for path in root.glob(".step-*") if _ASIDE.fullmatch(path.name)]


def steps(root: Path) -> list[Path]:
    """The checkpoint directories under `root`, newest first; what has another name is not ours."""
    numbered = ((step_of(path), path) for path in root.glob("step-*") if path.is_dir())
    found = {step: path for step, path in numbered if step is not None}
    return [found[step] for step in sorted(found, reverse=True)]


def final_checkpoint(run: Path) -> Path:
    """The newest checkpoint directory of a run, whole or not.

    Raises:
        UsageError: the directory holds no run, or one without checkpoints.
    """
    found = steps(checkpoints(run))
    if not found and status(run) == "finished":
        raise UsageError(
            f"{run} has no checkpoints any more",
            f"name another run; make reproduce RUN={shlex.quote(str(run))} trains this one again",
        )
    if not found:
        raise UsageError(f"there is no run with checkpoints in {run}", name_one(run))
    return found[0]
