"""What a sweep was asked to do, as its folder keeps it: who goes on with it does the same."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from host import regular
from host.errors import CheckpointError, UsageError
from train import experiment
from train.config import Config
from train.experiment import differences, told
from train.record import documents
from train.sweeps import points, space
from train.sweeps.points import Points

NAME = "sweep.json"
SAMPLERS = ("grid", "random", "tpe")
_FLAGS = {
    "over": "--over",
    "sampler": "--sampler",
    "seeds": "--seeds",
    "prune": "--prune",
    "knobs": "knob on the command line",
    "given": "experiment: --config, or that file has changed",
}

BEFORE_PRUNING = 4  # trials, of which a middle one is taken


@dataclass(frozen=True)
class Spec:
    """A sweep, but for where it is kept.

    Attributes:
        over: what is varied, as it is typed.
        trials: how many are drawn; None: all combinations.
        sampler: how.
        seeds: how many each point is repeated with.
        prune: whether trials that fall behind end early.
        knobs: of the command line, over those of the experiment's file.
        given: what the experiment's file says.
        file: its name, for errors.
        workers: how many trials at once; None: as many as there are places.
        place: what decides bits of where a trial is trained, as `slots.Slot.decides` has it.
    """

    over: list[str]
    trials: int | None
    sampler: Literal["grid", "random", "tpe"]
    seeds: int
    prune: bool
    knobs: dict[str, Any]
    given: dict[str, Any]
    file: str
    workers: int | None
    place: dict[str, str | int]

    def points(self) -> Points:
        """The trials.

        Raises:
            UsageError: what is to be varied makes no sense.
        """
        axes = space.axes(self.over)
        for axis in axes:
            section, _, name = axis.knob.rpartition(".")
            inner = self.knobs.get(section, {}) if section else self.knobs
            if name in inner:
                raise UsageError(
                    f"--{axis.knob} {inner[name]} does nothing beside --over {axis.knob}=…",
                    "take one of the two away",
                )
        points.check(axes, self.trials, self.seeds)
        learns = self.sampler == "tpe"
        return Points(tuple(axes), self.experiment({}).seed, self.seeds, self.trials, learns)

    def experiment(self, values: Mapping[str, str]) -> Config:
        """That of a trial with these values.

        Raises:
            UsageError: it is none.
        """
        try:
            return experiment.loaded(self.given, self.file, space.nested(self.knobs, values))
        except UsageError as error:
            if not values:
                raise
            said = " ".join(f"{name}={value}" for name, value in values.items())
            problem = error.problem.removeprefix("the command line: ")
            raise UsageError(f"with {said}: {problem}", error.fix) from error

    def check_pruning(self, planned: Points) -> None:
        """See that a new sweep has trials that can be ended early.

        Raises:
            UsageError: it has not.
        """
        if self.prune and planned.total <= BEFORE_PRUNING:
            raise UsageError(
                f"--prune does nothing: it waits for {BEFORE_PRUNING} finished trials, of"
                f" {planned.total} here",
                "take it away, or more trials",
            )

    def check(self, planned: Points) -> None:
        """See that each trial has an experiment; where values are proposed on the way, that the
        ends of each range and each value have, with the first of the others.

        Raises:
            UsageError: naming one that has none.
        """
        if not planned.learns:
            for number in range(0, planned.total, planned.seeds):
                self.experiment(planned.values(number))
            return
        first = {axis.knob: axis.at(0.0) for axis in planned.axes}
        for axis in planned.axes:
            for share in axis.shares:
                self.experiment({**first, axis.knob: axis.at(share)})

    def write(self, folder: Path) -> None:
        """Keep it.

        Raises:
            CheckpointError: that cannot be done.
        """
        fix = "choose another --run, or make room"
        documents.write(folder / NAME, documents.text(asdict(self)) + "\n", fix)


def read(folder: Path) -> Spec | None:
    """What the sweep in a folder was asked to do; None where there is none.

    Raises:
        CheckpointError: its file is damaged.
    """
    path = folder / NAME
    try:
        text = regular.read(path, documents.MOST)
        documents.mapping(text)  # as other files of ours: no numbers that JSON has not, and so on
        return TypeAdapter(Spec).validate_json(text, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}", "mend it") from error
    except ValueError as error:
        why: object = error
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(
            f"{path} is damaged: {why}",
            "restore it from a copy, or choose another --run",
        ) from error


def going_on(before: Spec, said: Mapping[str, Any], folder: Path) -> Spec:
    """The sweep to go on with.

    Args:
        said: what is said of it anew: more trials may be asked for, and other workers.

    Raises:
        UsageError: naming what is another.
    """
    now = replace(before, **said)
    for name, flag in _FLAGS.items():
        if getattr(now, name) != getattr(before, name):
            other = differences(before.experiment({}), now.experiment({}))
            named = name in ("knobs", "given") and other
            raise UsageError(
                f"the sweep in {folder} was started with"
                f" {told(other) if named else f'another {flag}'}",
                f"go on with --run {folder} --resume alone, or choose another --run",
            )
    if now.trials != before.trials and (now.trials or 0) < (before.trials or math.inf):
        asked = "all combinations" if before.trials is None else f"{before.trials} trials"
        raise UsageError(
            f"--trials {now.trials}, and the sweep in {folder} was asked for {asked}",
            "ask for more, or choose another --run",
        )
    return now


def check_place(before: Spec, place: Mapping[str, str | int], folder: Path) -> None:
    """See that trials are trained where those before them were, as far as that decides bits.

    Raises:
        UsageError: naming what is another.
    """
    for name, was in before.place.items():
        if place.get(name) != was:
            raise UsageError(
                f"the sweep in {folder} was started with {name} {was}, and this is"
                f" {place.get(name)}",
                "go on with the same PRECISION, GPUS, CPUS and --workers, or choose another --run",
            )
