"""What a run leaves in writing beside its checkpoints: run.json, config.yaml, result.json."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from host.errors import HostError, LockstepError, Stopped
from train.config import Config
from train.experiment import dump
from train.record import codes, comparison, documents, rundir


@dataclass(frozen=True)
class Started:
    """A run that was written down.

    Attributes:
        id: its own, which it keeps when it goes on.
        changed: what is not as it was when the run was last started, for one that goes on.
        mixed: files of the code that have changed between earlier starts of it.
    """

    id: str
    changed: list[str]
    mixed: list[str]


def start(config: Config, manifest: Mapping[str, Any], path: Path, step: int) -> Started:
    """Write what is about to run, from `step` on; `manifest` is what `provenance` says of it."""
    before = documents.record(path) or {}
    attempts = before.get("attempts", [])
    changed = comparison.differences(before, manifest) if attempts else []
    probes = comparison.other_probes(before, manifest)
    if config.portable and probes:
        raise _other_bits(before, manifest, probes, changed)
    attempt = {
        "command": manifest["command"],
        "started": _now(),
        "from_step": step,
        "world_size": manifest["world_size"],
        "changed": changed,
    }
    whole = {
        "id": before.get("id") or secrets.token_hex(8),
        **manifest,
        "command": before.get("command") or manifest["command"],
        "started": attempts[0]["started"] if attempts else attempt["started"],
        "ended": None,
        "exit_code": None,
        "attempts": [*attempts, attempt],
    }
    documents.write_json(path / "run.json", whole)
    documents.write(path / "config.yaml", dump(config))
    return Started(str(whole["id"]), changed, codes.mixed(before, step))


def _other_bits(
    before: Mapping[str, Any], now: Mapping[str, Any], probes: str, changed: list[str]
) -> HostError:
    """Why a portable run cannot go on here, where some operations round otherwise."""
    said = f"numerics: portable, and here are other bits in {probes} than where this run was"
    inside = before.get("image") is not None
    if inside != (now.get("image") is not None):
        # Not all of it comes from the lock: NumPy's functions are the C library's.
        where = "in a container, and this is none" if inside else "outside of this container"
        return HostError(
            f"{said} started, which was {where}",
            f"add ENGINE={'docker' if inside else 'local'}, or start again here in another --run",
        )
    packages = "; ".join(note for note in changed if note.startswith("package "))
    return HostError(
        f"{said} started{packages and ', which had: '}{packages}",
        "go on where it was started, or start again here in another --run"
        + ("" if packages else "; please report it"),
    )


def finish(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run that came to its end."""
    documents.write_json(path / "result.json", {"status": "finished", **result})
    _end(path, 0)


@contextmanager
def ending(path: Path, *, main: bool) -> Iterator[None]:
    """Leave word of how the block ended where it did not end well. Checkpoints stay.

    Args:
        main: whether this process is the one that writes.
    """
    try:
        yield
    except BaseException as error:
        if main and (path / "run.json").exists():  # else it did not even start
            close(path, error)
        raise


def close(path: Path, error: BaseException) -> None:
    """Leave word that a run ended so."""
    code = error.code if isinstance(error, LockstepError) else 1
    code = 130 if isinstance(error, KeyboardInterrupt) else code
    last = rundir.steps(rundir.checkpoints(path))
    result = {
        "status": "stopped" if isinstance(error, Stopped) else "failed",
        "steps": rundir.step_of(last[0]) if last else 0,
        "error": str(error) or type(error).__name__,
    }
    # The disk may be what failed; the error that is on its way says more.
    with suppress(LockstepError):
        documents.write_json(path / "result.json", result)
        _end(path, code)


def _end(path: Path, code: int) -> None:
    manifest = documents.record(path)
    if manifest is not None and manifest.get("attempts"):
        how = {"ended": _now(), "exit_code": code}
        *earlier, last = manifest["attempts"]
        documents.write_json(
            path / "run.json", {**manifest, **how, "attempts": [*earlier, {**last, **how}]}
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
