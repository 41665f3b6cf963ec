"""Precision, memory format and compilation: which is fastest. Each of them changes the bits."""

from typing import Any

from host.errors import HostError, UsageError
from train.config import Config
from train.tuning.loaders import SAME
from train.tuning.trials import Row, Trials


def measured(config: Config, trials: Trials) -> list[Row]:
    """Step times of each precision and memory format, and of the fastest one compiled."""
    rows: list[Row] = []

    def measure(precision: str, last: bool, compiled: bool) -> None:
        own = _with(config, channels_last=last, compile=compiled)
        row: Row = {"precision": precision, "channels_last": last, "compile": compiled}
        try:
            notes = trials.run(own, "speed", {"PRECISION": precision})
            row |= next(note for note in notes if "seconds_per_step" in note)
            said = f"{row['samples_per_second']:9,.1f} samples/s"
        except (HostError, UsageError) as error:  # what the model or portable numerics refuse, too
            row["error"] = error.problem
            said = error.problem
        words = f"  {precision:<4}  channels_last {last!s:<5}  compile {compiled!s:<5}"
        print(f"{words}  {said}")
        rows.append(row)

    for precision, last in formats(config, trials):
        measure(precision, last, False)
    good = [row for row in rows if "error" not in row]
    if not good:
        raise HostError(rows[0]["error"], "see the logs of the trials, beside tune.json")
    best = max(good, key=lambda row: float(row["samples_per_second"]))
    if not config.portable:
        measure(best["precision"], best["channels_last"], True)
    return rows


def formats(config: Config, trials: Trials) -> list[tuple[str, bool]]:
    """Each precision, with and without channels_last; portable numerics have FP32 alone."""
    precisions = ["no"] + ["bf16"] * (not config.portable)
    precisions += ["fp16"] * (trials.plan(config).device == "cuda")
    return [(precision, last) for precision in precisions for last in (False, True)]


def fastest(config: Config, trials: Trials, rows: list[Row], said: list[str]) -> tuple[Config, str]:
    """The fastest of what was measured: taken at `fast`, else named, for it changes the bits."""
    precision = trials.plan(config).precision
    model = config.model
    used = {"precision": precision, "channels_last": model.channels_last, "compile": model.compile}
    good = [row for row in rows if "error" not in row]
    same = [row for row in good if all(row[name] == value for name, value in used.items())]
    best = max(good, key=lambda row: float(row["samples_per_second"]))
    now = same[0] if same else good[0]
    gain = best["samples_per_second"] / now["samples_per_second"]
    kept = f" PRECISION={precision}" if precision != "no" else ""
    if gain < 1 / SAME:
        said.append("no other precision, memory format or compilation is faster")
        return config, kept
    words = ", ".join(
        f"PRECISION={best[name]}" if name == "precision" else f"model.{name}: {best[name]}".lower()
        for name in used
        if best[name] != used[name]
    )
    if config.reproducibility != "fast":
        said.append(f"{gain:.2f} × as fast with {words}: other bits, so that is left to you")
        return config, kept
    said.append(f"{gain:.2f} × as fast with {words}: taken, for `fast` promises no bits")
    tuned = _with(config, channels_last=best["channels_last"], compile=best["compile"])
    return tuned, f" PRECISION={best['precision']}" * (best["precision"] != "no")


def _with(config: Config, **changes: Any) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})
