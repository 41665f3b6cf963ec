"""A sweep's outcome: lines, trials.csv, sweep.html, and the best experiment as a file to use."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from host.text import printable
from train.experiment import dump
from train.record import documents
from train.sweeps import results
from train.sweeps.points import SEED, Points
from train.sweeps.results import Point, Row
from train.sweeps.space import Axis, Span
from train.sweeps.spec import Spec
from train.sweeps.study import Trial

TABLE, PAGE, BEST = "trials.csv", "sweep.html", "best.yaml"
_SHOWN = 20  # points
_FIX = "make room, then add --resume"
_HERE = Path(__file__).parent


def write(folder: Path, spec: Spec, planned: Points, trials: Sequence[Trial]) -> list[str]:
    """Write the files.

    Returns:
        Lines to print.

    Raises:
        CheckpointError: one cannot be written, or a run's files are damaged.
    """
    rows = results.rows(folder, trials)
    found = results.points(rows, planned)
    doubts = [*results.warnings(folder, rows), *results.strangers(folder, rows, planned)]
    doubts += results.ties(found)
    documents.write(folder / TABLE, results.table(folder, rows, planned.names), _FIX)
    documents.write(folder / PAGE, _page(folder, planned, rows, found, doubts), _FIX)
    lines = [*(_points(found, planned) if planned.axes else _seeds(found[0]))]
    lines += [f"warning: {each}" for each in doubts]
    if planned.axes and found and found[0].mean is not None:
        path = folder / BEST
        documents.write(path, _best(folder, spec, found[0]), _FIX)
        words = shlex.quote(f"CONFIG={path}")
        lines.append(f"best experiment in {path}: make train {words}")
    return [*lines, f"all trials in {folder / TABLE}, as a page in {folder / PAGE}"]


def _seeds(point: Point) -> Iterator[str]:
    for row in point.rows:
        if row.result is not None:
            seed = row.trial.values[SEED]
            yield f"seed {seed:>3}  top-1 {100 * row.result.top1:6.2f} %  {row.result.weights}"
    yield f"top-1 {_spread(point)}"


def _points(found: Sequence[Point], planned: Points) -> Iterator[str]:
    names = [axis.knob for axis in planned.axes]
    table = [["trial" if planned.seeds == 1 else "trials", *names, "top-1"]]
    for point in found[:_SHOWN]:
        numbers = ",".join(str(row.trial.number) for row in point.rows)
        came = _spread(point) if point.top1 else point.rows[0].trial.status
        table.append([numbers, *(point.values[name] for name in names), came])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        yield "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
    if len(found) > _SHOWN:
        yield f"… and {len(found) - _SHOWN} more"


def _spread(point: Point) -> str:
    if point.mean is None:
        return "none is finished"
    mean, count = f"{100 * point.mean:.2f}", len(point.top1)
    if point.seeds == 1:
        return f"{mean} %"
    lacking = f" of {point.seeds}" * (count < point.seeds)
    if point.deviation is None:
        return f"{mean} %, one seed{lacking}"
    how = f"mean and standard deviation of {count}{lacking} seeds"
    return f"{mean} ± {100 * point.deviation:.2f} %, {how}"


def _best(folder: Path, spec: Spec, point: Point) -> str:
    config = spec.experiment(point.values)
    numbers = ", ".join(str(row.trial.number) for row in point.rows)
    said = "  ".join(f"{name}={value}" for name, value in point.values.items())
    return _comments(
        f"The best of {folder}, trial {numbers}: {said}",
        f"Validation top-1: {_spread(point)}. It was chosen by that figure, which flatters it:"
        " measure it on pictures that had no part in this.",
    ) + dump(config)


def _comments(*lines: str) -> str:
    return "".join(f"# {printable(line)}\n" for line in lines)


def _page(
    folder: Path,
    planned: Points,
    rows: Sequence[Row],
    found: Sequence[Point],
    doubts: Sequence[str],
) -> str:
    from train.report import templates  # which a sweep has no use for until its end

    counts = Counter(row.trial.status for row in rows)
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return templates.page(
        _HERE / "page.html",
        {"share": _share},
        folder=str(folder),
        counts=f"{len(rows)} of {planned.total} trials: {said}",
        doubts=doubts,
        charts=_charts(planned, rows),
        names=[axis.knob for axis in planned.axes],
        all_names=planned.names,
        seeds=planned.seeds,
        points=found,
        rows=rows,
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _charts(planned: Points, rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    from train.report import charts  # half a second of imports

    done = [(row.trial, row.trial.top1) for row in rows if row.trial.top1 is not None]
    if not done:
        return []
    values = [100 * top1 for _, top1 in done]
    best = [max(values[: n + 1]) for n in range(len(values))]
    drawn = [
        (
            "Top-1 of each trial, %",
            charts.dots([t.number for t, _ in done], values, "trial", best=best),
        )
    ]
    for axis in planned.axes:
        places = _places(axis, [trial for trial, _ in done])
        log = isinstance(axis, Span) and axis.log
        drawn.append((f"Top-1 by {axis.knob}, %", charts.dots(places, values, axis.knob, log=log)))
    return drawn


def _places(axis: Axis, trials: Sequence[Trial]) -> list[float] | list[str]:
    texts = [trial.values[axis.knob] for trial in trials]
    return [float(text) for text in texts] if isinstance(axis, Span) else texts
