"""Two runs beside each other: what went into them that differs, and where their bits part."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.errors import CheckpointError, UsageError
from train.experiment.comparing import every_difference, typed
from train.record import comparison, documents, rundir, trace

Pair = tuple[str, str]


@dataclass(frozen=True)
class Compared:
    """What differs, each with both values; empty or None where nothing does.

    Attributes:
        deciding: knobs that decide the result.
        idle: knobs that do not, and the number of processes where that does not.
        factors: data, code, packages and machine.
        computing: what gave other bits on the two machines when it was tried.
        steps: how many each has in its trace; what both have is compared.
        step: the first one whose loss or gradient is another.
        figures: of that step, in words.
        weights: whether both ended in the same; None where one has none.
        results: figures of the last evaluation of each, in words, by name; None of one without.
    """

    deciding: dict[str, Pair]
    idle: dict[str, Pair]
    factors: dict[str, Pair]
    computing: list[str]
    steps: tuple[int, int]
    step: int | None
    figures: Pair | None
    weights: bool | None
    results: dict[str, tuple[str | None, str | None]]


def read(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's record, and its result, which may be empty.

    Raises:
        UsageError: there is no run.
        CheckpointError: its files are damaged.
    """
    record = documents.record(run)
    if record is None:
        raise UsageError(f"there is no run in {run}", rundir.name_one(run))
    return record, documents.result(run) or {}


def compare(one: Path, other: Path) -> Compared:
    """What is not the same in two runs.

    Raises:
        UsageError: one of them is no run.
        CheckpointError: its files are damaged.
    """
    (first, was), (second, is_) = read(one), read(other)
    knobs = every_difference(documents.experiment(one, first), documents.experiment(other, second))
    said = {name: (typed(a), typed(b)) for name, a, b, _ in knobs}
    free = {name for name, _, _, free in knobs if free}
    factors = {name: (a, b) for name, a, b in comparison.unlike(first, second)}
    idle = {name: pair for name, pair in said.items() if name in free}
    worlds = str(first.get("world_size")), str(second.get("world_size"))
    if worlds[0] != worlds[1] and "processes" not in factors:
        idle["processes"] = worlds
    deciding = {name: pair for name, pair in said.items() if name not in free}
    # Probes of other numerics, and a first pass of another experiment, say nothing of a machine.
    computing = []
    if "numerics" not in deciding:
        task = ("data", "code", "starting")
        same = not deciding and not any(name.split()[0] in task for name in factors)
        computing = comparison.computing(first, second, same=same)
    traces = _trace(one), _trace(other)
    both = traces[0].keys() & traces[1].keys()
    step = trace.first_difference(*({n: each[n] for n in both} for each in traces))
    weights = was.get("weights_sha256"), is_.get("weights_sha256")
    return Compared(
        deciding=deciding,
        idle=idle,
        factors=factors,
        computing=computing,
        steps=(len(traces[0]), len(traces[1])),
        step=step,
        figures=None if step is None else (_figures(traces[0][step]), _figures(traces[1][step])),
        weights=weights[0] == weights[1] if all(weights) else None,
        results={
            name: (_result(was, name), _result(is_, name)) for name in ("top1", "loss", "steps")
        },
    )


def _result(result: dict[str, Any], name: str) -> str | None:
    value = result.get("metrics", {}).get(name, result.get(name))
    if not isinstance(value, (int, float)):
        return None
    return {"top1": f"{100 * value:.2f} %", "loss": f"{value:.4f}"}.get(name, f"{value:,}")


def _trace(run: Path) -> dict[int, trace.Figures]:
    try:
        found = trace.read(run)
        for figures in found.values():
            _figures(figures)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"cannot read {run / trace.NAME}: {why}", "restore it from a copy"
        ) from error
    return found


def _figures(traced: trace.Figures) -> str:
    loss, norm = map(float.fromhex, traced)
    return f"loss {loss!r}, gradient {norm!r}"
