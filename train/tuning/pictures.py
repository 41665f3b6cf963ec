"""Pictures of what `tune` measured."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams["svg.hashsalt"] = "lockstep"
_SIZE = (7.0, 4.2)


def batch(path: Path, rows: list[dict[str, Any]], chosen: int) -> None:
    """Micro-batch against samples/s and memory."""
    rows = sorted(rows, key=lambda row: int(row["size"]))
    sizes = [row["size"] for row in rows]
    figure = Figure(figsize=_SIZE, layout="constrained")
    speed = figure.subplots()
    speed.plot(sizes, [row["samples_per_second"] for row in rows], "o-", color="C0")
    speed.set_xscale("log", base=2)
    speed.set_xlabel("micro-batch (samples)")
    speed.set_ylabel("samples/s", color="C0")
    speed.set_ylim(bottom=0)
    memory = speed.twinx()
    memory.plot(sizes, [row["memory"] / 2**30 for row in rows], "s--", color="C1")
    memory.axhline(rows[0]["memory_total"] / 2**30, color="C1", linewidth=0.8)
    memory.set_ylabel("memory, GiB (line: all there is)", color="C1")
    memory.set_ylim(bottom=0)
    speed.axvline(chosen, color="0.7", linestyle=":")
    speed.set_title(f"largest micro-batch: {chosen}")
    figure.savefig(path, dpi=120)


def rates(path: Path, rows: list[tuple[float, float, float]], chosen: float) -> None:
    """Learning rate against loss: (rate, loss, smoothed loss) of each step."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.plot([row[0] for row in rows], [row[1] for row in rows], color="0.8")
    axes.plot([row[0] for row in rows], [row[2] for row in rows], color="C0")
    axes.axvline(chosen, color="C1", linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.set_title(f"falls fastest at {chosen:.2g}")
    figure.savefig(path, dpi=120)
