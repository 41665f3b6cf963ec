"""What a run leaves in writing beside its checkpoints: run.json, config.yaml, result.json."""

import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train import checkpoint, order, provenance, rundir
from train.config import Config
from train.errors import TrainError
from train.evaluate import Metrics
from train.experiment import dump
from train.loop import Parts, State
from train.runtime import Runtime


def start(config: Config, path: Path, step: int, data_sha256: str | None, here: Runtime) -> str:
    """Write what is about to run; returns the run's id, which it keeps when it goes on."""
    before = rundir.read_json(path / "run.json") or {}
    manifest = provenance.describe(config, here, data_sha256)
    manifest["id"] = before.get("id") or secrets.token_hex(8)
    manifest |= {"started": _now(), "resumed_from_step": step or None}
    rundir.write_json(path / "run.json", manifest)
    rundir.write(path / "config.yaml", dump(config))
    return str(manifest["id"])


def finish(path: Path, parts: Parts, state: State, figures: Metrics) -> dict[str, Any]:
    """Write the result of a run that came to its end, and return it."""
    samples = order.consumed(state.step, parts.config.batch_size, parts.samples)
    result = {
        "status": "finished",
        "steps": state.step,
        "samples": samples,
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(samples / max(state.seconds, 1e-9), 1),
        "weights_sha256": checkpoint.weights_sha256(parts.unwrapped),
        "metrics": figures.full(),
        "best": {"step": state.best_step, "top1": state.best_top1},
    }
    rundir.write_json(path / "result.json", result)
    _end(path, 0)
    return result


def close(path: Path, code: int, problem: str) -> None:
    """Leave word of how a run ended that did not finish. Its checkpoints stay."""
    if not (path / "run.json").exists():  # it did not even start: what we named leaves no trace
        if path.parent.parent == rundir.RUNS:
            with suppress(OSError):
                path.rmdir()
                path.parent.rmdir()
        return
    status = "stopped" if code == 75 else "failed"
    last = checkpoint.steps(rundir.checkpoints(path))
    steps = int(last[0].name.removeprefix("step-")) if last else 0
    result = {"status": status, "steps": steps, "error": problem}
    # The disk may be what failed; the error that is on its way says more.
    with suppress(TrainError):
        rundir.write_json(path / "result.json", result)
        _end(path, code)


def _end(path: Path, code: int) -> None:
    manifest = rundir.read_json(path / "run.json")
    if manifest is not None:
        rundir.write_json(path / "run.json", {**manifest, "ended": _now(), "exit_code": code})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
