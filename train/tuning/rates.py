"""A learning-rate range test (Smith 2017, arXiv:1506.01186)."""

import math
from pathlib import Path

from host.errors import HostError
from train.config import Config
from train.tuning import pictures
from train.tuning.trials import Row, Trials

STEPS = 100


def tested(config: Config, trials: Trials, folder: Path) -> Row:
    """Where the loss falls, falls fastest, and leaves for good."""
    low, high = (1e-6, 1.0) if config.optim.name == "adamw" else (1e-4, 30.0)
    rates = [low * (high / low) ** (n / (STEPS - 1)) for n in range(STEPS)]
    notes = [note for note in trials.run(config, "lr", rates=rates) if "rate" in note]
    rows: list[tuple[float, float, float]] = []
    smooth, weight = 0.0, 0.0
    for note in notes:
        if note["loss"] is None:
            break
        smooth, weight = 0.9 * smooth + 0.1 * note["loss"], 0.9 * weight + 0.1
        rows.append((note["rate"], note["loss"], smooth / weight))
    if len(rows) < 10:
        raise HostError("the loss was not finite from the first steps on", "check data and model")
    lowest = min(range(len(rows)), key=lambda n: rows[n][2])
    falls = [rows[n][2] - rows[n + 1][2] for n in range(max(1, lowest))]
    steepest = rows[max(range(len(falls)), key=lambda n: falls[n])][0]
    pictures.rates(folder / "lr.png", rows, steepest)
    last = notes[-1]["rate"] if len(notes) < STEPS else math.inf
    print(f"  the loss falls until {rows[lowest][0]:.2g}, fastest at {steepest:.2g}")
    diverges = None if last == math.inf else last
    return {"steepest": steepest, "lowest": rows[lowest][0], "diverges": diverges, "tried": notes}
