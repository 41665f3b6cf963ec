"""A run trained again from its record alone, and compared bit by bit."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from host import errors, regular
from host.errors import CheckpointError, NotReproduced, UsageError
from host.plan import Plan
from host.text import printable
from train import objections
from train.config import Config
from train.experiment import changed, dump, moved, parse, settled
from train.process import plan, supervisor
from train.record import comparison, documents, metrics, rundir, trace


def reproduce(
    run: Path, *, cpus: int | None, gpus: int | None, root: str | None, anyway: bool
) -> None:
    """Train again what `run` recorded, in a run directory of its own, and compare.

    Args:
        cpus, gpus: how many processes to use, and where; both None: as recorded.
        root: where the data is now, if elsewhere.
        anyway: train even where it is known beforehand that something is not what it was.

    Raises:
        NotReproduced: other bits came out.
        LockstepError: the run cannot be reproduced, or training it again failed.
    """
    manifest, result = _record(run)
    config = settled(moved(parse(manifest["config"], f"{run / 'run.json'}"), root))
    planned = _plan(config, manifest, cpus, gpus)
    contradictions = [
        f"the record of {run} contradicts itself: {problem}"
        for problem in objections.contradictions(run, manifest, result, config)
    ]
    for error in [
        *(UsageError(problem, objections.ANYWAY) for problem in contradictions),
        *objections.before(run, manifest, config, planned.processes),
    ]:
        if not anyway:
            raise error
        print(f"warning: {error.problem}")
    # By another name: `--resume` without a value is about the user's own runs.
    config = changed(config, "name", f"{config.name}-again")
    again = rundir.choose(config, None, None)
    # What a run sends to others while it trains is nothing to repeat.
    silent = changed(config, "wandb.mode", "off")
    if planned.device == "cpu":
        silent = changed(silent, "data.cache_on", "host")
    documents.write(again / "config.yaml", dump(silent))
    print(printable(f"training again what {run} recorded, in {again}"), flush=True)
    words = ["fit", "--config", str(again / "config.yaml"), "--run", str(again)]
    code = supervisor.supervise(supervisor.command(planned, "train", words), alone=planned.single)
    if code:
        raise errors.of(code)(f"training {run} again ended with code {code}", "see the line above")
    _compare(run, again, contradictions)


def _record(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    manifest = documents.record(run)
    if manifest is None:
        raise UsageError(f"there is no record {run / 'run.json'}", rundir.name_one(run))
    missing = {"config", "hardware", "code", "git", "attempts", "versions"} - manifest.keys()
    if missing:
        raise UsageError(
            f"{run / 'run.json'} does not say enough: it has no {', '.join(sorted(missing))}",
            "an older version wrote it, or somebody edited it; train it again",
        )
    result = documents.result(run) or {}
    if result.get("status") != "finished":
        raise UsageError(
            f"{run} has not finished: there is nothing to compare with",
            f"finish it with make train CONFIG={run / 'config.yaml'} RUN={run} ARGS=--resume",
        )
    for path in (run / trace.NAME, run / metrics.NAME):
        try:
            with suppress(FileNotFoundError):
                regular.opened(path).close()
        except OSError as error:
            raise CheckpointError(
                f"cannot read {path}: {error.strerror}", "restore it from a copy"
            ) from error
    return manifest, result


def _plan(config: Config, manifest: dict[str, Any], cpus: int | None, gpus: int | None) -> Plan:
    """Where to train: on so many processes, or as GPUS and CPUS say, or as recorded."""
    recorded = manifest["hardware"]
    precision = recorded["mixed_precision"]
    # At lockstep whole weights give the same bits.
    accelerate = "fsdp" if recorded.get("sharded") and not config.lockstep else ""
    fixed = dict.fromkeys(("SHARES", "STAGES"), ("",))
    said = {"PRECISION": ("", precision), "ACCELERATE": ("", accelerate), **fixed}
    for name, allowed in said.items():
        if os.environ.get(name, "") not in allowed:
            raise UsageError(
                f"{name}={os.environ[name]}, and a run is trained again as it was recorded",
                f"say {name}={allowed[-1]}; CPUS and GPUS are free",
            )
    where = {name: os.environ.get(name, "") for name in ("CPUS", "GPUS")}
    if cpus is not None or gpus is not None:
        where = {"CPUS": str(cpus or ""), "GPUS": str(gpus or "")}
    elif not any(where.values()):
        where["GPUS" if recorded["type"] == "cuda" else "CPUS"] = str(manifest["world_size"])
    told = {"PRECISION": precision, "ACCELERATE": accelerate}
    try:
        return plan.of(config, {**os.environ, **where, **told}, config.lanes)
    except UsageError as error:  # other lanes, which it may advise, are other bits
        raise UsageError(error.problem, error.fix.partition(", or a new run")[0]) from error


def _compare(run: Path, again: Path, contradictions: list[str]) -> None:
    (before, was), (after, is_) = _record(run), _record(again)
    factors = comparison.differences(before, after)
    for attempt in before["attempts"][1:]:
        factors += [f"when {run} went on, {change}" for change in attempt["changed"]]
    for factor in comparison.few(factors):
        print(printable(f"not as recorded: {factor}"))
    traced, traced_again = trace.read(run), trace.read(again)
    step = trace.first_difference(traced, traced_again) if traced else None
    same = was["weights_sha256"] == is_["weights_sha256"]
    figure = _other_figure(run, again, was, is_)
    processes = f"{after['world_size']} process{'es' * (after['world_size'] > 1)}"
    if same and step is None and figure is None:
        print(
            f"same bits: {'all' if traced else 'no trace of'} {is_['steps']} steps, all figures,"
            f" and weights {is_['weights_sha256']}, on {processes} (recorded:"
            f" {before['world_size']})"
        )
        return
    where = "only the final weights differ"
    if same and figure is not None:
        where = f"the weights are the same, and {figure}"
    if step is not None:
        both = step in traced and step in traced_again
        where = f"step {step} {'is the first that differs' if both else 'stands in one trace only'}"
    why = (
        "; ".join([*contradictions, *comparison.few(factors)]) or "nothing that is recorded differs"
    )
    sys.stdout.flush()
    raise NotReproduced(f"not the same bits: {where}; {why}", f"compare {run} and {again}")


def _other_figure(run: Path, again: Path, was: dict[str, Any], is_: dict[str, Any]) -> str | None:
    """The first figure that did not come out as it is recorded; None: all did."""
    # A record may have lost its figures on the way; those of the end stand in result.json.
    traced = (run / metrics.NAME).exists()
    before, after = _figures(run, was, traced), _figures(again, is_, traced)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            return f"{name} is {before.get(name)} in its record, and {after.get(name)} now"
    return None


def _figures(run: Path, result: dict[str, Any], traced: bool) -> dict[str, Any]:
    """All that was measured, by name: at the end, and in evaluations on the way."""
    found = {name: result.get(name) for name in ("ema_sha256", "steps", "samples", "best")}
    found |= result.get("metrics") or {}
    for row in metrics.read(run) if traced else []:
        if row["kind"] == "eval":
            figures = {name: row.get(name) for name in ("loss", "top1", "top5")}
            found |= {f"{name} at step {row['step']}": value for name, value in figures.items()}
    return found
