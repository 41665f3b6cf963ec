"""A sweep's folder: which one, and whether it may be used."""

from datetime import datetime
from pathlib import Path

from host.errors import HostError, UsageError
from train.record import files, rundir
from train.sweeps import spec


def going_on(run: Path | None, *, resume: bool) -> Path | None:
    """The folder of a sweep that is to go on; None: a new one is to begin.

    Raises:
        UsageError: there is none to go on with, or one that is not to.
    """
    if run is None and not resume:
        return None
    if run is None:
        held = list(rundir.RUNS.glob(f"**/{spec.NAME}"))
        if not held:
            raise UsageError(f"there is no sweep in {rundir.RUNS}", "start one without --resume")
        return max(held, key=lambda path: path.stat().st_mtime).parent
    if not (run / spec.NAME).exists():
        return None
    if not resume:
        raise UsageError(
            f"{run} already holds a sweep",
            "add --resume to go on, or choose another --run",
        )
    return run


def made(run: Path | None, name: str) -> Path:
    """A folder for a new sweep."""
    if run is None:
        stamp = f"sweep-{datetime.now():%Y%m%d-%H%M%S}"
        run = rundir.RUNS / name / stamp
        while run.exists():
            run = run.with_name(f"{run.name}+")
    try:
        files.make_directory(run)
        others = [path.name for path in run.iterdir() if path.name[0] != "."]
    except OSError as error:
        raise HostError(
            f"the folder {run} cannot be made: {error.strerror}",
            "choose another --run",
        ) from error
    if others:
        raise UsageError(
            f"the directory {run} holds {min(others)} and no sweep",
            "name a new or empty directory: --run",
        )
    return run
