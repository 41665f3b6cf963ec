"""Several runs' curves over each other, on a page that needs nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from host.text import printable
from train.record import documents
from train.report import charts, course, templates
from train.runs import compared, listed

MOST = len(charts.SERIES)
"""Runs that can be told apart by their colours."""


def write(path: Path, runs: Sequence[Path], said: Sequence[str]) -> None:
    """Write the page.

    Args:
        runs: MOST at most.
        said: lines on what differs.

    Raises:
        UsageError: one is no run.
        CheckpointError: the files of one are damaged, or the page cannot be written.
    """
    records = [compared.read(run) for run in runs]
    courses = [course.read(run) for run in runs]
    names = _names(runs)
    charted = [
        (
            "Validation top-1, %",
            charts.lines(_named(names, [c.measured("top1") for c in courses]), scale=100),
        ),
        (
            "Validation loss",
            charts.lines(_named(names, [c.measured("loss") for c in courses])),
        ),
        ("Training loss", charts.lines(_named(names, [c.trained("loss") for c in courses]))),
        ("Learning rate", charts.lines(_named(names, [c.trained("lr") for c in courses]))),
        (
            "Samples per second",
            charts.lines(_named(names, [c.trained("samples_per_second") for c in courses])),
        ),
    ]
    rows = []
    for run, name, (record, result) in zip(runs, names, records, strict=True):
        metrics = result.get("metrics", {})
        figures = [metrics.get("top1"), metrics.get("loss"), result.get("seconds")]
        measured = result.get("ema_sha256") or result.get("weights_sha256")
        rows.append((name, listed.status_of(run, record, result), *figures, measured))
    template = Path(__file__).with_name("together.html")
    text = templates.page(template, curves=charted, rows=rows, said=said)
    documents.write(path, text, "name a file in a folder that is there: --html")


def _names(runs: Sequence[Path]) -> list[str]:
    """Their paths, without what all have in common."""
    parts = [run.absolute().parts for run in runs]
    common = 0
    while len({some[: common + 1] for some in parts}) == 1 and common < min(map(len, parts)) - 1:
        common += 1
    names = [printable(str(Path(*some[common:]))) for some in parts]
    # A legend leaves out what begins so.
    return [f"./{name}" if name.startswith("_") else name for name in names]


def _named(names: Sequence[str], every: Sequence[charts.Series]) -> list[charts.Series]:
    return [replace(series, name=name) for name, series in zip(names, every, strict=True)]
