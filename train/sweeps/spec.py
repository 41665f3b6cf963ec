"""What a sweep was asked to do, as its folder keeps it: who goes on with it does the same."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from host import regular
from host.errors import CheckpointError, UsageError
from train import experiment
from train.config import Config
from train.record import documents
from train.sweeps import points, space
from train.sweeps.points import Points

NAME = "sweep.json"
EXPERIMENT = "experiment.yaml"
SAMPLERS = ("grid", "random", "tpe")
_FLAGS = {
    "over": "--over",
    "sampler": "--sampler",
    "seeds": "--seeds",
    "prune": "--prune",
    "knobs": "knob on the command line",
    "text": "--config, or that file has changed",
}


@dataclass(frozen=True)
class Spec:
    """A sweep, but for where it is kept and how many trials are trained at once.

    Attributes:
        over: what is varied, as it is typed.
        trials: how many are drawn; None: all combinations.
        sampler: one of SAMPLERS.
        seeds: how many each point is repeated with.
        prune: whether trials that fall behind end early.
        knobs: of the command line, over those of the experiment's file.
        text: the experiment's file; None: there is none.
    """

    over: list[str]
    trials: int | None
    sampler: str
    seeds: int
    prune: bool
    knobs: dict[str, Any]
    text: str | None

    def points(self, config: Config) -> Points:
        """The trials.

        Raises:
            UsageError: what is to be varied makes no sense.
        """
        axes = space.axes(self.over)
        points.check(axes, self.trials, self.seeds)
        return Points(tuple(axes), config.seed, self.seeds, self.trials)

    def experiment(self, file: Path | None, values: Mapping[str, str]) -> Config:
        """That of a trial with these values.

        Args:
            file: where the experiment's text stands; None: there is none.

        Raises:
            UsageError: it is none.
        """
        try:
            return experiment.load(file, space.nested(self.knobs, values))
        except UsageError as error:
            if not values:
                raise
            said = " ".join(f"{name}={value}" for name, value in values.items())
            problem = error.problem.removeprefix("the command line: ")
            raise UsageError(f"with {said}: {problem}", error.fix) from error

    def check(self, file: Path | None, planned: Points) -> None:
        """See that each combination is an experiment. Of what is drawn, each value by itself: two
        of them may not fit together.

        Raises:
            UsageError: naming one that is none.
        """
        if self.trials is None:
            for number in range(0, planned.total, planned.seeds):
                self.experiment(file, planned.values(number))
            return
        for axis in planned.axes:
            for share in axis.shares:
                self.experiment(file, {axis.knob: axis.at(share)})

    def write(self, folder: Path) -> None:
        """Keep it.

        Raises:
            CheckpointError: that cannot be done.
        """
        fix = "choose another --run, or make room"
        if self.text is not None:
            documents.write(folder / EXPERIMENT, self.text, fix)
        documents.write(folder / NAME, documents.text(asdict(self)) + "\n", fix)


def kept(folder: Path, spec: Spec) -> Path | None:
    """Where a sweep's folder keeps its experiment; None where that is all defaults."""
    return folder / EXPERIMENT if spec.text is not None else None


def read(folder: Path) -> Spec | None:
    """What the sweep in a folder was asked to do; None where there is none.

    Raises:
        CheckpointError: its file is damaged.
    """
    path = folder / NAME
    try:
        content = documents.mapping(regular.read(path, documents.MOST))
        return Spec(**content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}", "mend it") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}", "restore it from a copy, or choose another --run"
        ) from error


def going_on(before: Spec, given: Mapping[str, Any], folder: Path) -> Spec:
    """The sweep to go on with.

    Args:
        given: what was said of it anew: more trials may be asked for, and nothing else.

    Raises:
        UsageError: naming what is another.
    """
    now = replace(before, **given)
    for name, flag in _FLAGS.items():
        if getattr(now, name) != getattr(before, name):
            raise UsageError(
                f"the sweep in {folder} was started with another {flag}",
                f"go on with --run {folder} --resume alone, or choose another --run",
            )
    if now.trials != before.trials and (now.trials or 0) < (before.trials or math.inf):
        asked = "all combinations" if before.trials is None else f"{before.trials} trials"
        raise UsageError(
            f"--trials {now.trials}, and the sweep in {folder} was asked for {asked}",
            "ask for more, or choose another --run",
        )
    return now
