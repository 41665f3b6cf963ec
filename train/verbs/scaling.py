"""say what a step of a run would take on more machines: a model, beside what was measured"""

import argparse
from pathlib import Path
from typing import Any

from host.errors import UsageError
from host.text import printable
from train.record import rundir
from train.runs import scaling
from train.runs.scaling import Link, Run

LAUNCHED = False
KNOBS = False

_PROCESSES = (8, 64, 1024)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Of which run, and over what network."""
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="a run directory (default: the newest run)"
    )
    parser.add_argument(
        "--rate", type=_positive, metavar="GBIT", help="of a link, Gbit/s (default: as measured)"
    )
    parser.add_argument(
        "--delay", type=_positive, metavar="MS", help="there and back, ms (default: as measured)"
    )
    parser.add_argument(
        "--each", type=int, metavar="N", help="processes on a machine (default: as in the run)"
    )


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Print the table.

    Raises:
        LockstepError: what went wrong, for the user to mend.
    """
    path = options.run or rundir.newest()
    run = scaling.measured(path)
    lines = [] if run.link is None else _beside(run, run.link)
    link = _link(options, run)
    work = run.work if options.each is None else scaling.on(run.work, options.each)
    about = f"{work.each} process{'es' * (work.each > 1)} a machine"
    network = f"{8e-9 * link.rate:.3g} Gbit/s, {1000 * link.delay:.3g} ms there and back"
    names = ("processes", "machines", "a step", "waits", "pictures/s", "of ideal")
    lines += [
        "",
        f"A model, not a measurement, of {about}, {network}.",
        f"Each keeps its {work.lanes} lanes, so the batch grows; sums inside a machine are free.",
        "".join(f"{name:>12}" for name in names),
    ]
    for processes in sorted({run.processes, *_PROCESSES}):
        waits = work.communication(processes, link)
        step = work.own + waits
        rate = run.pictures / run.processes * processes / step
        lines.append(
            f"{processes:>12,}{-(-processes // work.each):>12,}{_ms(step):>12}"
            f"{100 * waits / step:>10.0f} %{rate:>12,.0f}{100 * work.own / step:>10.0f} %"
        )
    print(printable("\n".join([f"{path}: {_what(run)}", *lines])))


def _beside(run: Run, link: Link) -> list[str]:
    """The model of the run itself, beside the run."""
    waits = run.work.communication(run.processes, link)
    rows = [("measured", run.step, run.communication), ("model", run.work.own + waits, waits)]
    head = f"{'':>12}{'a step':>12}{'waits':>12}"
    return [head, *(f"{name:>12}{_ms(step):>12}{_ms(waits):>12}" for name, step, waits in rows)]


def _what(run: Run) -> str:
    machines = -(-run.processes // run.work.each)
    exchanged = sum(run.work.buckets) / 2**20
    words = f"{run.processes} process{'es' * (run.processes > 1)} on {machines} machine"
    return (
        f"{words}{'s' * (machines > 1)}, {exchanged:.3g} MiB summed in {len(run.work.buckets)}"
        " parts a step"
    )


def _link(options: argparse.Namespace, run: Run) -> Link:
    """As it was asked for, and otherwise as it was measured."""
    if run.link is None and (options.rate is None or options.delay is None):
        raise UsageError(
            "the run has measured no link between machines",
            "say one: --rate 25 --delay 0.05 is 25 Gbit/s, 0.05 ms there and back",
        )
    known = run.link or Link(0.0, 0.0)
    rate = known.rate if options.rate is None else options.rate * 1e9 / 8
    return Link(rate, known.delay if options.delay is None else options.delay / 1000)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return value
