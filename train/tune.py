"""The verb `tune`: what this experiment can do on this machine, measured.

The global batch decides the result, the micro-batch only the speed. What cannot change the bits
goes into the experiment that is written; what would is measured and named, and goes into it only
where `reproducibility` is `fast`, or where the training would not fit otherwise.
"""

import json
import math
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from train import experiment, launch, limits
from train.config import Config
from train.errors import HostError, UsageError
from train.search import Search
from train.trials import NoMemory, Note, Trials

WHAT = ("batch", "workers", "speed", "lr")
# What is measured is as good as another where it is this near to it.
_SAME = 0.95
_RATES = 100


def tune(file: Path | None, config: Config, what: list[str]) -> Path:
    """Measure `what`, and write an experiment that may be used as it is; returns its path.

    Raises:
        TrainError: the experiment cannot be trained here at all.
    """
    folder = _folder(config)
    trials = Trials(folder, launch.visible_gpus())
    found: dict[str, Any] = {"experiment": str(file), "command": sys.argv[1:]}
    said: list[str] = []
    tuned = config
    if "batch" in what:
        print("the largest micro-batch:", flush=True)
        found["batch"] = _batch(config, trials, folder)
        tuned = _lanes(tuned, found["batch"], said)
    if "workers" in what:
        print("loader processes:", flush=True)
        found["workers"] = _workers(tuned, trials)
        best = found["workers"]["best"]
        tuned = _with(tuned, "data", workers=best["workers"], prefetch=best["prefetch"])
        said.append(_about_workers(found["workers"]))
    variables = ""
    if "speed" in what:
        print("precision, memory format, compilation:", flush=True)
        found["speed"] = _speed(tuned, trials)
        tuned, variables = _faster(tuned, found["speed"], said)
    if "lr" in what:
        print("learning rates:", flush=True)
        found["lr"] = _range(tuned, trials, folder)
        said.append(
            f"the loss falls fastest at lr {found['lr']['steepest']:.2g} (now {config.optim.lr:g});"
            " another rate is another result, so that is left to you"
        )
    path = folder / "experiment.yaml"
    head = "".join(f"# {line}\n" for line in ["Written by tune, from measurements:", *said])
    path.write_text(f"{head}\n{experiment.dump(tuned)}", encoding="utf-8")
    (folder / "tune.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(said))
    print(f"train with it: make train CONFIG={path}{variables}")
    return path


def _folder(config: Config) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / config.name / f"tune-{stamp}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HostError(
            f"{folder} cannot be made: {error.strerror}", "mend the permissions of runs/"
        ) from error
    return folder


def _with(config: Config, section: str, **changes: Any) -> Config:
    part = getattr(config, section).model_copy(update=changes)
    return config.model_copy(update={section: part})


def _batch(config: Config, trials: Trials, folder: Path) -> Note:
    """The largest micro-batch that fits, and what was measured on the way."""
    search = Search()
    rows: dict[int, Note] = {}
    about: Note = {}
    while True:
        state = {"low": search.low, "high": search.high, "most": search.most}
        try:
            notes, over = trials.run(config, "batch", search=state), True
        except NoMemory as error:
            notes, over = error.notes, False  # type: ignore[attr-defined]
        for note in notes:
            if "world" in note or "answers" in note:
                about |= note
            if "world" in note:
                # More is no batch of this data.
                search.most = max(1, note["images"] // note["world"])
            elif note.get("fits"):
                search.fits(note["size"])
                rows[note["size"]] = note
            elif "fits" in note:
                search.fails(note["size"])
        tried = [note["trying"] for note in notes if "trying" in note]
        done = {note["size"] for note in notes if "fits" in note}
        if not over and tried and tried[-1] not in done:
            print(f"  micro-batch {tried[-1]:>5}  killed for lack of memory", flush=True)
            search.fails(tried[-1])
        elif not over:
            raise HostError(
                "not even the model fits into memory",
                "use a smaller one, or `make doctor` to see why",
            )
        if search.next() is None:
            break
    if not search.low:
        raise HostError(
            "not even a micro-batch of 1 fits into memory",
            "use a smaller model or image, PRECISION=bf16, or a larger device",
        )
    from train import pictures  # half a second that the other verbs need not pay

    pictures.batch(folder / "batch.png", list(rows.values()), search.low)
    return {"largest": search.low, "limit": search.high, "tried": list(rows.values()), **about}


def _lanes(config: Config, found: Note, said: list[str]) -> Config:
    """Lanes that fit; others than those of the experiment only where it must be."""
    largest, world = found["largest"], found["world"]
    said.append(
        f"the largest micro-batch is {largest}, on each of {world} process{'es' * (world > 1)};"
        f" the experiment's is {config.micro_batch} ({config.lanes} lanes)"
    )
    fewest = _fewest(config, largest, world)
    if fewest is None:
        raise UsageError(
            f"no number of lanes cuts batch_size {config.batch_size} into micro-batches of"
            f" {largest} or fewer for {world} processes",
            "choose another batch_size: a power of two has the most divisors",
        )
    if config.micro_batch > largest:
        said.append(f"lanes: {fewest} instead, for that does not fit: other bits than before")
        return config.model_copy(update={"lanes": fewest})
    if fewest < config.lanes:
        near = {int(row["size"]): row["samples_per_second"] for row in found["tried"]}
        now, then = (_at(near, size) for size in (config.micro_batch, config.batch_size // fewest))
        said.append(
            f"lanes: {fewest} would do as well, at {then / now:.2f} × the speed; other bits, and"
            " batch norm would see more samples at once"
        )
    return config


def _fewest(config: Config, largest: int, world: int) -> int | None:
    """The fewest lanes that fit, and that the processes can share."""
    for lanes in range(world, config.batch_size + 1, world):
        power = lanes & (lanes - 1) == 0 or config.reproducibility != "lockstep"
        if config.batch_size % lanes == 0 and power and config.batch_size // lanes <= largest:
            return lanes
    return None


def _at(speeds: dict[int, float], size: int) -> float:
    """Speed at a size, from the sizes that were measured: between two of them, in proportion."""
    below = max((s for s in speeds if s <= size), default=min(speeds))
    above = min((s for s in speeds if s >= size), default=max(speeds))
    if above == below:
        return speeds[below]
    share = (size - below) / (above - below)
    return speeds[below] + share * (speeds[above] - speeds[below])


def _workers(config: Config, trials: Trials) -> Note:
    """Loader processes and how far they work ahead: the fewest that keep up."""
    local = max(1, _processes(trials, config))
    room = max(1, limits.cpus() // local)
    counts = sorted({0, 1, 2, room, *(2**n for n in range(room.bit_length()))})
    counts = [count for count in counts if count <= room or count <= 2]
    # Once for the caches of the system, and not looked at.
    pairs = [(0, config.data.prefetch), *((count, config.data.prefetch) for count in counts)]
    rows = [n for n in trials.run(config, "workers", pairs=pairs) if "workers" in n][1:]
    best = _enough(rows)
    if best["workers"] and best["data_share"] > 0.05:
        more = [(best["workers"], ahead) for ahead in (4, 8) if ahead > config.data.prefetch]
        rows += [n for n in trials.run(config, "workers", pairs=more) if "workers" in n]
        best = _enough(rows)
    now = [row for row in rows if row["workers"] == config.data.workers]
    return {"tried": rows, "best": best, "before": now[0] if now else rows[0], "room": room}


def _processes(trials: Trials, config: Config) -> int:
    words = launch.command(os.environ, [], trials.visible, config.lanes)
    return int(words[words.index("--num_processes") + 1]) if "--num_processes" in words else 1


def _enough(rows: list[Note]) -> Note:
    """The fewest workers, and the least ahead, that are as fast as the fastest."""
    most = max(row["samples_per_second"] for row in rows)
    good = [row for row in rows if row["samples_per_second"] >= _SAME * most]
    return min(good, key=lambda row: (row["workers"], row["prefetch"]))


def _about_workers(found: Note) -> str:
    best, before = found["best"], found["before"]
    return (
        f"data.workers: {best['workers']}, prefetch: {best['prefetch']}:"
        f" {100 * best['data_share']:.0f} % of step time waits for data"
        f" ({100 * before['data_share']:.0f} % with {before['workers']}), the same bits"
    )


def _speed(config: Config, trials: Trials) -> list[Note]:
    """Step times of each precision and memory format, and of the fastest one compiled."""
    precisions = ["no", "bf16"] + ["fp16"] * bool(trials.visible and _on_gpu())
    rows: list[Note] = []

    def measure(precision: str, last: bool, compiled: bool) -> None:
        own = _with(config, "model", channels_last=last, compile=compiled)
        row: Note = {"precision": precision, "channels_last": last, "compile": compiled}
        try:
            notes = trials.run(own, "speed", {"PRECISION": precision})
            row |= next(note for note in notes if "seconds_per_step" in note)
            said = f"{row['samples_per_second']:9,.1f} samples/s"
        except HostError as error:
            row["error"] = error.problem
            said = error.problem
        words = f"  {precision:<4}  channels_last {last!s:<5}  compile {compiled!s:<5}"
        print(f"{words}  {said}", flush=True)
        rows.append(row)

    for precision in precisions:
        for last in (False, True):
            measure(precision, last, False)
    good = [row for row in rows if "error" not in row]
    if not good:
        raise HostError(rows[0]["error"], "see the logs of the trials, beside tune.json")
    best = max(good, key=lambda row: float(row["samples_per_second"]))
    measure(best["precision"], best["channels_last"], True)
    return rows


def _on_gpu() -> bool:
    return not os.environ.get("CPUS") and os.environ.get("GPUS") != "0"


def _faster(config: Config, rows: list[Note], said: list[str]) -> tuple[Config, str]:
    """The fastest of what was measured: taken at `fast`, else named, for it changes the bits."""
    precision = os.environ.get("PRECISION") or "no"
    model = config.model
    same = [
        r for r in rows
        if (r["precision"], r["channels_last"], r["compile"])
        == (precision, model.channels_last, model.compile) and "error" not in r
    ]  # fmt: skip
    good = [row for row in rows if "error" not in row]
    best = max(good, key=lambda row: float(row["samples_per_second"]))
    now = same[0] if same else good[0]
    gain = best["samples_per_second"] / now["samples_per_second"]
    kept = f" PRECISION={precision}" if precision != "no" else ""
    if gain < 1 / _SAME:
        said.append("no other precision, memory format or compilation is faster")
        return config, kept
    words = (
        f"PRECISION={best['precision']}, model.channels_last: {best['channels_last']},"
        f" model.compile: {best['compile']}".lower().replace("precision", "PRECISION")
    )
    if config.reproducibility != "fast":
        said.append(f"{gain:.2f} × as fast with {words}: other bits, so that is left to you")
        return config, kept
    said.append(f"{gain:.2f} × as fast with {words}: taken, for `fast` promises no bits")
    tuned = _with(config, "model", channels_last=best["channels_last"], compile=best["compile"])
    return tuned, f" PRECISION={best['precision']}" * (best["precision"] != "no")


def _range(config: Config, trials: Trials, folder: Path) -> Note:
    """A learning-rate range test (Smith 2017, arXiv:1506.01186)."""
    low, high = (1e-6, 1.0) if config.optim.name == "adamw" else (1e-4, 30.0)
    rates = [low * (high / low) ** (n / (_RATES - 1)) for n in range(_RATES)]
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
    from train import pictures

    pictures.rates(folder / "lr.png", rows, steepest)
    last = notes[-1]["rate"] if len(notes) < _RATES else math.inf
    print(f"  the loss falls until {rows[lowest][0]:.2g}, fastest at {steepest:.2g}", flush=True)
    diverges = None if last == math.inf else last
    return {"steepest": steepest, "lowest": rows[lowest][0], "diverges": diverges, "tried": notes}
