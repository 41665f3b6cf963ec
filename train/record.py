"""What a run leaves in writing beside its checkpoints: run.json, config.yaml, result.json."""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train import checkpoint, order, provenance, rundir
from train.errors import TrainError
from train.evaluate import Metrics
from train.experiment import dump, parse
from train.parts import Parts, State


def start(manifest: Mapping[str, Any], path: Path, step: int) -> tuple[str, list[str]]:
    """Write what is about to run.

    Returns:
        The run's id, which it keeps when it goes on, and what is not as it was when the run was
        last started, for a run that goes on.
    """
    before = rundir.read_json(path / "run.json") or {}
    attempts = before.get("attempts", [])
    changed = provenance.differences(before, manifest) if attempts else []
    attempt = {
        "started": _now(), "from_step": step, "world_size": manifest["world_size"],
        "changed": changed,
    }  # fmt: skip
    whole = {
        "id": before.get("id") or secrets.token_hex(8),
        **manifest,
        "started": attempts[0]["started"] if attempts else attempt["started"],
        "ended": None, "exit_code": None,
        "attempts": [*attempts, attempt],
    }  # fmt: skip
    rundir.write_json(path / "run.json", whole)
    config = parse(manifest["config"], "run.json")
    rundir.write(path / "config.yaml", dump(config))
    return str(whole["id"]), changed


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
    if not (path / "run.json").exists():  # it did not even start
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
        how = {"ended": _now(), "exit_code": code}
        *earlier, last = manifest["attempts"]
        rundir.write_json(
            path / "run.json", {**manifest, **how, "attempts": [*earlier, {**last, **how}]}
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
