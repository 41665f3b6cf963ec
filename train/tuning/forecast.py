"""How long `tune` will take, said before it begins: from one training of seconds."""

import math
import time

from host.errors import OutOfMemory
from train.config import Config
from train.tuning import loaders, rates, variants
from train.tuning.search import ROOM, Search
from train.tuning.trials import Row, Trials

_COMPILING = 40.0
"""Seconds for a model's compilation, roughly."""
_BUILDING = 0.5
"""Seconds for what a try of a micro-batch builds, at least."""


def told(config: Config, trials: Trials, what: list[str]) -> str:
    """A line about the minutes that each measurement takes, roughly.

    Raises:
        LockstepError: the experiment cannot be trained here, for another reason than memory.
    """
    begin = time.perf_counter()
    ended = trials.attempt(config, "probe")
    if isinstance(ended.error, OutOfMemory):
        return "how long this takes is not known: the experiment's own batch does not fit here"
    if ended.error is not None:
        raise ended.error
    row = {key: value for row in ended.rows for key, value in row.items()}
    start = time.perf_counter() - begin - row["measured_seconds"]
    each = {name: _seconds(name, config, trials, start, row) for name in what}
    parts = ", ".join(f"{name} {_minutes(seconds)}" for name, seconds in each.items())
    return f"this takes about {_minutes(sum(each.values()))} min ({parts})"


def _minutes(seconds: float) -> str:
    return str(math.ceil(seconds / 60)) if seconds > 45 else "½"


def _seconds(name: str, config: Config, trials: Trials, start: float, row: Row) -> float:
    """What a measurement takes: starts of processes, and steps."""
    step = float(row["seconds_per_step"])
    measured = 2 * step + max(2.0, 8 * step)  # see trial.py
    if name == "batch":
        return start + _tries(config, row)
    if name == "workers":
        return start + (1 + len(loaders.counts(config, trials))) * measured
    if name == "speed":
        compiled = 0 if config.portable else start + _COMPILING + measured
        return len(variants.formats(config, trials)) * (start + measured) + compiled
    return start + rates.STEPS * step


def _tries(config: Config, row: Row) -> float:
    """Steps of one micro-batch on each process: of sizes that the search will come by."""
    world, most = row["world"], max(1, row["images"] // row["world"])
    # What a sample takes, with its share of what does not depend on the batch: rather too much.
    sample = max(1.0, (row["memory"] - row["memory_before"]) / config.micro_batch)
    largest = (ROOM * row["memory_total"] - row["memory_before"]) / sample
    computed = (1 - row["data_share"]) / row["samples_per_second"]
    search, seconds = Search(most=most), 0.0
    while (size := search.next()) is not None:
        seconds += _BUILDING + (3 + (world > 1)) * size * world * computed
        (search.fits if size <= max(1.0, largest) else search.fails)(size)
    return seconds
