"""list the runs in runs/: status, accuracy, time, processes, weights, age"""

import argparse
from typing import Any

from host.errors import UsageError, nearest
from host.text import json_line, printable
from train.record.rundir import RUNS
from train.runs import listed

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which of them, and in which order."""
    parser.add_argument("word", nargs="*", help="only runs with all of these words in their path")
    parser.add_argument("--status", metavar="STATUS", help="only runs that are finished, or so")
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        default="started",
        help=f"{', '.join(listed.COLUMNS)} (default: started); the largest last",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Print them.

    Raises:
        UsageError: there is no such column, or no run.
    """
    column = options.sort
    if column not in listed.COLUMNS:
        near = nearest(column, listed.COLUMNS)
        raise UsageError(f"--sort {column}: no column{near}", f"one of {', '.join(listed.COLUMNS)}")
    every = listed.found(RUNS)
    known = {run.status for run in every}
    if options.status not in (None, *known, *listed.STATUSES):
        near = nearest(options.status, listed.STATUSES)
        raise UsageError(
            f"--status {options.status}: no status{near}", f"one of {', '.join(listed.STATUSES)}"
        )
    runs = [
        run
        for run in every
        if all(word in run.run for word in options.word) and options.status in (None, run.status)
    ]
    if not runs:
        others = f"; it has {len(every)} others" if every else ""
        words = f" with all of {', '.join(options.word)}" if len(options.word) > 1 else ""
        raise UsageError(
            f"there is no such run{words} in {RUNS}{others}", "train one, or ask for others"
        )
    runs.sort(key=lambda run: (getattr(run, column) is not None, getattr(run, column)))
    lines = [json_line(run.written()) for run in runs] if options.json else listed.table(runs)
    print("\n".join(map(printable, lines)))
