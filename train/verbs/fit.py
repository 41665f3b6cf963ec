"""train an experiment; the script that every hardware config launches"""

import argparse
import os
from pathlib import Path
from typing import Any

from host.errors import UsageError
from train.config import Config
from train.experiment import batch, load
from train.numerics import variables
from train.process import interrupt
from train.record import rundir

LAUNCHED = True
KNOBS = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiment, and where its run is kept."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the experiment, a YAML file")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="the run directory (default: runs/<name>/<time>-<signature>)",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="DIR",
        help="continue DIR, or --run's directory, or the newest unfinished run of this name; "
        "with --run and --config, start where there is nothing to continue",
    )


def experiment(options: argparse.Namespace, knobs: dict[str, Any]) -> Config:
    """The experiment: --config, or what a run that is continued was started with; and knobs.

    Raises:
        UsageError: naming the first knob that is wrong, and where it was set; or nothing says what
            a run is to begin with.
    """
    file: Path | None = options.config
    if file is None and options.resume:
        run = options.resume if isinstance(options.resume, str) else options.run
        own = Path(run) / "config.yaml" if run is not None else None
        file = own if own is not None and own.exists() else None
        if file is None and options.resume is True and options.run is not None:
            _check_begun(options.run)
    return load(file, knobs)


def _check_begun(run: Path) -> None:
    """Refuse to begin what nobody has described: it would be an experiment of defaults."""
    if (run / "sweep.json").exists():
        raise UsageError(f"{run} is a sweep, and no run", "make sweep goes on with it")
    if not (run / "run.json").exists():
        raise UsageError(
            f"{run} holds no run to go on with",
            f"{rundir.name_one(run)}; to begin one there, name its experiment: CONFIG=FILE (without"
            " make, --config FILE)",
        )


def lanes(config: Config) -> int:
    """The experiment's: the processes share them."""
    return config.lanes


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Train."""
    with interrupt.listen() as stop:
        config = experiment(options, knobs)
        if config.portable:
            variables.hold()
        if config.reproducibility == "deterministic":
            # DDP warns that it looks for unused parameters, which is what keeps its sums in one
            # order (see runtime). Read when torch is loaded.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from train.run import fit

        advice = batch.advice(options.config, knobs, config)
        fit(config, options.run, options.resume, stop, advice)
