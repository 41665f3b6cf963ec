"""measure what an experiment can do here: batch, loaders, precision, learning rate"""

import argparse
from pathlib import Path
from typing import Any

from train import experiment
from train.numerics import variables

LAUNCHED = False
KNOBS = True

MEASURES = ("batch", "workers", "speed", "lr")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiment, and what to measure."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the experiment, a YAML file")
    parser.add_argument(
        "--what",
        default=list(MEASURES),
        type=_measures,
        metavar="LIST",
        help=f"which of {', '.join(MEASURES)} (default: all)",
    )


def _measures(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in MEASURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(MEASURES)}")
    return words


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Measure, and write an experiment to use."""
    config = experiment.load(options.config, knobs)
    if config.portable:
        variables.hold()  # for the trials, which are processes of their own
    from train.tuning.tune import tune

    tune(options.config, config, options.what)
