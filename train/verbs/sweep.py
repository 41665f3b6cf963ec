"""train an experiment with several seeds, or with other knobs; killed, it goes on"""

import argparse
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.errors import LockstepError, UsageError
from host.text import printable
from train import experiment
from train.process import interrupt
from train.record import lock
from train.sweeps import folder as folders
from train.sweeps import spec as specs
from train.sweeps.points import Points
from train.sweeps.spec import SAMPLERS, Spec
from train.verbs import positive

if TYPE_CHECKING:
    from train.sweeps.slots import Slot

LAUNCHED = False
KNOBS = True

_SAID = ("over", "trials", "sampler", "seeds", "prune", "workers")


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
        type=positive,
        metavar="N",
        help="train each with N seeds, the experiment's and those after it",
    )
    parser.add_argument(
        "--trials",
        type=positive,
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
        type=positive,
        metavar="N",
        help="how many at once (default: one a GPU, or one on the CPU); they share GPUS or CPUS",
    )
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="its folder (default: runs/<name>/sweep-<time>)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with --run's, or with the newest one"
    )


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Sweep.

    Raises:
        UsageError: what is asked for makes no sense.
        Stopped: a signal came; what was trained is kept.
        LockstepError: what else went wrong, for the user to mend.
    """
    with interrupt.listen() as stop, ExitStack() as held:
        folder, before = folders.going_on(options.run, resume=options.resume), None
        if folder is None:
            spec = _new(options, knobs)
        else:
            held.enter_context(lock.hold(folder, lock.PATIENCE))
            before = specs.read(folder)
            if before is None:
                raise UsageError(f"there is no sweep in {folder} any more", "start another one")
            spec = specs.going_on(before, _given(options, knobs), folder)
        planned = spec.points()
        spec.check(planned)
        if before is None:
            spec.check_pruning(planned)
        from train.sweeps.slots import slots

        config = spec.experiment({})
        places = slots(config, os.environ, spec.workers)
        spec = replace(spec, place=places[0].decides)
        if folder is None:
            folder = folders.made(options.run, config.name)
            held.enter_context(lock.hold(folder))
        if before is not None:
            specs.check_place(before, spec.place, folder)
        spec.write(folder)
        at_once = f", {len(places)} at once" if len(places) > 1 else ""
        print(printable(f"{planned.total} trials{at_once}: {folder}"))
        _train(folder, spec, planned, places, stop)


def _train(
    folder: Path, spec: Spec, planned: Points, places: "list[Slot]", stop: interrupt.StopFlag
) -> None:
    from train.sweeps import told
    from train.sweeps.study import Study
    from train.sweeps.sweeping import Sweep

    study = Study(folder, planned)
    try:
        with Sweep(folder, spec, study, places) as sweep:
            sweep.run(stop)
    except LockstepError:
        with suppress(Exception):  # the first error says more
            told.write(folder, spec, planned, study.trials())
        raise
    lines = told.write(folder, spec, planned, study.trials())
    print("\n".join(map(printable, lines)))


def _given(options: argparse.Namespace, knobs: dict[str, Any]) -> dict[str, Any]:
    """What was said of a sweep, and nothing else."""
    said = {name: getattr(options, name) for name in _SAID} | {"knobs": knobs or None}
    if options.config:
        said |= {"given": experiment.read_yaml(options.config), "file": str(options.config)}
    return {name: value for name, value in said.items() if value is not None}


def _new(options: argparse.Namespace, knobs: dict[str, Any]) -> Spec:
    if options.resume and not (options.over or options.seeds):
        raise UsageError(
            f"there is no sweep in {options.run} to go on with",
            "name its folder: --run; or start one, and say what to vary: --over",
        )
    if options.resume:
        print(printable(f"{options.run} holds no sweep to go on with: starting one"))
    given = _given(options, knobs)
    drawn = given.get("trials") is not None
    usual: dict[str, Any] = {
        "over": [], "trials": None, "sampler": "random" if drawn else "grid", "seeds": 1,
        "prune": False, "knobs": {}, "given": {}, "file": "defaults", "workers": None, "place": {},
    }  # fmt: skip
    spec = Spec(**(usual | given))
    if drawn == (spec.sampler == "grid"):
        raise UsageError(
            f"--sampler {spec.sampler} with {'--trials' if drawn else 'no --trials'}",
            "leave --sampler out, or take --trials away" if drawn else "say how many: --trials 20",
        )
    if spec.seeds > 1 and (spec.sampler == "tpe" or spec.prune):
        raise UsageError(
            f"--seeds with {'--prune' if spec.prune else '--sampler tpe'}, which compares single"
            " trainings",
            "take --seeds away; train the best with several seeds afterwards",
        )
    return spec
