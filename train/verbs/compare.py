"""say what differs between runs: knobs, code, data, packages, machine, first step"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.errors import UsageError
from host.text import printable

if TYPE_CHECKING:
    from train.runs.compared import Compared

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run directories; the first with each other",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each pair")


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Print it.

    Raises:
        UsageError: there are less than two runs, or one is none.
        CheckpointError: the files of one are damaged.
    """
    first, *others = options.run
    if not others:
        raise UsageError(f"{first} alone", "name two runs or more; make runs lists them")
    from train.runs import compared

    for other in others:
        found = compared.compare(first, other)
        if options.json:
            said = json.dumps({"runs": [str(first), str(other)], **vars(found)})
        else:
            said = "\n".join(map(printable, [f"{first} and {other}", *_lines(found)]))
        print(f"{said}\n", end="", flush=True)


def _lines(found: "Compared") -> list[str]:
    from train.record.comparison import few

    parts = {
        "knobs that decide the result": found.deciding,
        "data, code, packages, machine": found.factors,
        "what decides nothing": found.idle,
    }
    lines = []
    for title, pairs in parts.items():
        lines += [f"  {title}:"] if pairs else []
        lines += [
            f"    {line}" for line in few([f"{n}: {a}, then {b}" for n, (a, b) in pairs.items()])
        ]
    lines += [f"  the machines compute otherwise: {each}" for each in found.computing]
    if not (found.deciding or found.factors or found.computing):
        lines.append("  nothing that decides the result differs")
    fewer, more = sorted(found.steps)
    if found.step is not None and found.figures is not None:
        one, other = found.figures
        lines.append(f"  step {found.step} is the first that differs: {one}; then {other}")
    elif fewer:
        lines.append(f"  all {fewer} steps have the same loss and gradient, to the bit")
    else:
        lines.append("  there is no trace of the steps of both")
    if fewer and fewer < more:
        lines.append(f"  one has {more - fewer} steps more than the other")
    if found.weights is not None:
        lines.append(f"  the final weights are {'the same' if found.weights else 'not the same'}")
    return lines
