"""say what differs between runs: knobs, code, data, packages, machine, first step"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.errors import UsageError
from host.text import json_line, printable

if TYPE_CHECKING:
    from train.runs.compared import Compared
    from train.runs.seeds import Group

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
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for each pair, and one for the seeds"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="draw their curves over each other"
    )


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Print it.

    Raises:
        UsageError: there are less than two runs, or one is none.
        CheckpointError: the files of one are damaged.
    """
    options.run = [path for run in options.run for path in _matched(run)]
    first, *others = options.run
    if not others:
        raise UsageError(f"{first} alone", "name two runs or more; make runs lists them")
    if options.html:
        _check_drawn(options.html, options.run)
    from train.runs import compared, seeds

    drawn: list[str] = []
    for other in others:
        found = compared.compare(first, other)
        lines = [f"{first} and {other}", *_results(found), *_lines(found)]
        drawn += lines
        if options.json:
            said = json_line({"runs": [str(first), str(other)], **vars(found)})
        else:
            said = "\n".join(map(printable, lines))
        print(said)
    groups = seeds.groups(options.run)
    lines = list(_seeds(groups))
    if lines:
        drawn += lines
        said = json_line(_seeds_written(groups)) if options.json else "\n".join(lines)
        print(printable(said))
    if options.html:
        _draw(options.html, options.run, drawn)


def _matched(run: Path) -> list[Path]:
    """The run, or those that a pattern matches: make has no shell that would."""
    root = Path(run.anchor)
    found = [] if run.exists() else sorted(root.glob(str(run.relative_to(root))))
    return [path for path in found if path.is_dir()] or [run]


def _check_drawn(path: Path, runs: list[Path]) -> None:
    from train.report import together

    if path.suffix != ".html":
        raise UsageError(f"--html {path}", "name a file that ends in .html")
    if len(runs) > together.MOST:
        raise UsageError(
            f"{len(runs)} curves over each other", f"draw {together.MOST} runs at most: --html"
        )


def _draw(path: Path, runs: list[Path], said: list[str]) -> None:
    from train.report import together

    together.write(path, runs, said)
    print(printable(f"curves in {path}"), file=sys.stderr)


def _seeds(groups: "list[Group]") -> Iterator[str]:
    """What several seeds of the same experiment say; nothing where there is one each."""
    from train.runs import seeds

    for group in groups:
        if len(group.runs) > 1:
            yield (
                f"{len(group.runs)} runs that differ in their seed ({_listed(group)}): top-1"
                f" {100 * group.mean:.2f} ± {100 * (group.deviation or 0):.2f} %, mean and standard"
                " deviation"
            )
    for group in groups[1:]:
        test = seeds.better(groups[0], group)
        if test:
            how = "the same seeds, paired" if test.paired else "Welch's t-test"
            yield (
                f"seeds {_listed(group)} of {next(iter(group.runs.values()))} against the first:"
                f" {100 * test.difference:+.2f} points, 95 % interval {100 * test.low:+.2f} to"
                f" {100 * test.high:+.2f}, p = {test.p:.2g} ({how})"
            )


def _listed(group: "Group") -> str:
    return ", ".join(map(str, group.runs))


def _seeds_written(groups: "list[Group]") -> dict[str, Any]:
    """The same for JSON."""
    from train.runs import seeds

    tests = [seeds.better(groups[0], group) for group in groups[1:]]
    return {
        "seeds": [
            {
                "runs": {str(seed): str(run) for seed, run in group.runs.items()},
                "top1": group.top1,
                "mean": group.mean,
                "deviation": group.deviation,
                "weights": group.weights,
            }
            for group in groups
        ],
        "against_first": [test and vars(test) for test in tests],
    }


def _results(found: "Compared") -> Iterator[str]:
    """How both came out, as far as they came."""
    pairs = [pair for pair in found.results.items() if None not in pair[1]]
    if pairs:
        said = (f"{name} {a}, then {b}" for name, (a, b) in pairs)
        yield f"  results: {'; '.join(said)}"


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
