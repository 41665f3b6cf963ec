"""train an experiment with several seeds, or with other knobs; killed, it goes on"""

import argparse
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.errors import HostError, LockstepError, UsageError
from host.text import printable
from train import experiment
from train.process import interrupt
from train.record import files, lock, rundir
from train.sweeps import spec as specs
from train.sweeps.points import Points
from train.sweeps.spec import SAMPLERS, Spec

if TYPE_CHECKING:
    from train.sweeps.slots import Slot

LAUNCHED = False
KNOBS = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiment, what to vary, and how."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the experiment, a YAML file")
    parser.add_argument(
        "--over",
        action="extend",
        nargs="+",
        metavar="KNOB=VALUES",
        help="what to vary: optim.lr=0.03,0.1,0.3 or seed=0..4 or, with --trials,"
        " optim.lr=log:0.01..1",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="train each with N seeds, the experiment's and those after it",
    )
    parser.add_argument(
        "--trials",
        type=_positive,
        metavar="N",
        help="draw N of all combinations (default: train each)",
    )
    parser.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="grid: each combination; random: evenly spread; tpe: near what went well (default:"
        " grid, and random with --trials)",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        default=None,
        help="end a training early where it is worse than the middle one of those before it",
    )
    parser.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="how many at once (default: one a GPU, or one on the CPU); they share GPUS or CPUS",
    )
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="its folder (default: runs/<name>/sweep-<time>)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with --run's, or with the newest one"
    )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Sweep.

    Raises:
        UsageError: what is asked for makes no sense.
        Stopped: a signal came; what was trained is kept.
        LockstepError: what else went wrong, for the user to mend.
    """
    with interrupt.listen() as stop:
        folder = _going_on(options)
        if folder is None:
            spec, file = _new(options, knobs), options.config
        else:
            before = specs.read(folder)
            assert before is not None
            spec = specs.going_on(before, _given(options, knobs), folder)
            file = specs.kept(folder, spec)
        config = spec.experiment(file, {})
        planned = spec.points(config)
        spec.check(file, planned)
        from train.sweeps.slots import slots

        places = slots(config, os.environ, options.workers)
        folder = folder or _made(options.run, config.name)
        with lock.hold(folder, lock.PATIENCE):
            spec.write(folder)
            at_once = f", {len(places)} at once" if len(places) > 1 else ""
            print(printable(f"{planned.total} trials{at_once}: {folder}"), flush=True)
            _train(folder, spec, planned, places, stop)


def _train(
    folder: Path, spec: Spec, planned: Points, places: "list[Slot]", stop: interrupt.StopFlag
) -> None:
    from train.sweeps import told
    from train.sweeps.study import Study
    from train.sweeps.sweeping import Sweep

    study = Study(folder, planned, learns=spec.sampler == "tpe")
    try:
        with Sweep(folder, spec, study, places) as sweep:
            sweep.run(stop)
    except LockstepError:
        with suppress(LockstepError):  # the first one says more
            told.write(folder, spec, planned, study.trials())
        raise
    lines = told.write(folder, spec, planned, study.trials())
    print("\n".join(map(printable, lines)), flush=True)


def _going_on(options: argparse.Namespace) -> Path | None:
    """The folder of a sweep that is to go on; None: a new one is to begin.

    Raises:
        UsageError: there is none to go on with, or one that is not to.
    """
    run: Path | None = options.run
    if run is None and not options.resume:
        return None
    if run is None:
        held = list(rundir.RUNS.glob(f"**/{specs.NAME}"))
        if not held:
            raise UsageError(f"there is no sweep in {rundir.RUNS}", "start one without --resume")
        return max(held, key=lambda path: path.stat().st_mtime).parent
    if not (run / specs.NAME).exists():
        return None
    if not options.resume:
        raise UsageError(
            f"{run} already holds a sweep", "add --resume to go on, or choose another --run"
        )
    return run


def _given(options: argparse.Namespace, knobs: dict[str, Any]) -> dict[str, Any]:
    """What was said of a sweep, but for nothing."""
    said = {
        "over": options.over,
        "trials": options.trials,
        "sampler": options.sampler,
        "seeds": options.seeds,
        "prune": options.prune,
        "knobs": knobs or None,
        "text": _text(options.config) if options.config else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _new(options: argparse.Namespace, knobs: dict[str, Any]) -> Spec:
    given = _given(options, knobs)
    drawn = given.get("trials") is not None
    usual = "random" if drawn else "grid"
    empty: dict[str, Any] = {
        "over": [],
        "trials": None,
        "sampler": usual,
        "seeds": 1,
        "prune": False,
    }
    spec = Spec(**({**empty, "knobs": {}, "text": None} | given))
    if drawn == (spec.sampler == "grid"):
        what = "--trials" if drawn else "no --trials"
        raise UsageError(
            f"--sampler {spec.sampler} with {what}",
            "leave --sampler out, or take --trials away" if drawn else "say how many: --trials 20",
        )
    if spec.sampler == "tpe" and spec.seeds > 1:
        raise UsageError(
            "--sampler tpe with --seeds: it learns from single trainings",
            "take --seeds away; train the best with several seeds afterwards",
        )
    return spec


def _text(file: Path) -> str:
    experiment.read_yaml(file)  # says what is wrong with it
    return file.read_text()


def _made(run: Path | None, name: str) -> Path:
    """A folder for a new sweep."""
    if run is None:
        stamp = f"sweep-{datetime.now():%Y%m%d-%H%M%S}"
        run = rundir.RUNS / name / stamp
        while run.exists():
            run = run.with_name(f"{run.name}+")
    try:
        files.make_directory(run)
        others = [path.name for path in run.iterdir() if path.name != lock.NAME]
    except OSError as error:
        raise HostError(
            f"the folder {run} cannot be made: {error.strerror}", "choose another --run"
        ) from error
    if others:
        raise UsageError(
            f"the directory {run} holds {min(others)} and no sweep",
            "name a new or empty directory: --run",
        )
    return run
