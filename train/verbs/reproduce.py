"""train a finished run again from its record, and compare the bits"""

import argparse
from pathlib import Path
from typing import Any

from train.verbs import positive

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, and where to train it."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run")
    where = parser.add_mutually_exclusive_group()
    for device in ("cpus", "gpus"):
        where.add_argument(
            f"--{device}",
            type=positive,
            metavar="N",
            help=f"train on N {device[:-1].upper()} processes (default: as recorded)",
        )
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")
    parser.add_argument(
        "--anyway", action="store_true", help="train even where code or data changed since"
    )


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Train it again."""
    from train.reproduce import reproduce

    reproduce(
        options.run,
        cpus=options.cpus,
        gpus=options.gpus,
        root=options.root,
        anyway=options.anyway,
    )
