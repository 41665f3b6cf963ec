"""write a run's report.html: result, proof, curves, mistakes, on one page"""

import argparse
import sys
from pathlib import Path
from typing import Any

from host.text import printable
from train.record import rundir

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Of which run, and where its data is."""
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="a run directory (default: the newest run)"
    )
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Write it, and name it.

    Raises:
        LockstepError: what went wrong, for the user to mend.
    """
    run = options.run or rundir.newest()
    from train.report import writing

    path, lacking = writing.again(run, options.root)
    if lacking:
        print(printable(f"warning: it has no pictures: {lacking}"), file=sys.stderr)
    print(printable(f"report in {path}"))
