"""Writes checkpoints, which are whole or absent, and removes those that are not kept."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from train.learn.weights import pieces, versions_of
from train.record import documents, files, rundir
from train.record.spread import Spread, Written, cannot_write
from train.record.stateful import split
from train.record.verification import MODEL, SUMS, file_of, listed


def write(
    root: Path,
    step: int,
    model: Mapping[str, Tensor],
    parts: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any],
    *,
    spread: Spread | None = None,
) -> Path:
    """Write checkpoint `step` under `root`, move `latest` to it, and return its directory.

    Args:
        model: weights and buffers, as `model.state_dict()` gave them.
        parts: the state of each other thing that has some, by name.
        state: whatever else there is to say, for JSON.
        spread: where several processes write, each its part of the tensors; the main one, which
            says the rest, waits for the others.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are untouched.
        LostPeers: a process that was to write its part is gone.
    """
    final = root / rundir.name_of(step)
    aside = spread.aside if spread else root / f".{final.name}.{os.getpid()}"
    main = spread is None or spread.part == 0
    whole = False
    try:
        if spread is None:
            files.make_directory(root)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
        content, plain, tensors = _content(model, parts, spread)
        digests = {name: files.write_new(aside / name, data) for name, data in content.items()}
        mine = Written(digests, tensors)
        if spread is not None and not main:
            spread.written(mine)
            whole = True
            return final
        written = spread.with_others(mine) if spread is not None else mine
        if written is None:
            return final
        said = {**state, "parts": plain, "tensors": written.tensors}
        text = (documents.text(said) + "\n").encode()
        digest = files.write_new(aside / rundir.STATE, [text])
        files.write_new(aside / SUMS, [listed({**written.digests, rundir.STATE: digest})])
        files.sync_directory(aside)
        _replace(aside, final)
        whole = True
        files.point(root / "latest", final.name)
        if state.get("best_step") == step:
            files.point(root / "best", final.name)
    except OSError as error:
        raise cannot_write(root, step, error) from error
    finally:
        if not whole and main:
            if spread:
                spread.settle()
            shutil.rmtree(aside, ignore_errors=True)
        elif not whole and spread:
            spread.failed()
    return final


def _content(
    model: Mapping[str, Tensor],
    parts: Mapping[str, Mapping[str, Any]],
    spread: Spread | None,
) -> tuple[
    dict[str, Iterator[bytes | memoryview]], dict[str, dict[str, Any]], dict[str, list[str]]
]:
    """The files of tensors that this process writes, by name; and of each part with state its plain
    values, and the names of its tensors.
    """
    part, of = (spread.part, spread.parts) if spread else (0, 1)
    content = {file_of(MODEL, part, of): pieces(model, versions_of(model))}
    plain: dict[str, dict[str, Any]] = {}
    slots: dict[str, list[str]] = {}
    for name, values in parts.items():
        tensors, plain[name] = split(name, values)
        slots[name] = sorted(tensors)
        if tensors:
            content[file_of(name, part, of)] = pieces(tensors)
    return content, plain, slots


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best, and what dead writers left."""
    wanted = {path.name for path in rundir.steps(root)[:keep]} | {
        link.readlink().name for link in (root / "latest", root / "best") if link.is_symlink()
    }
    for path in (*rundir.steps(root), *rundir.leftovers(root)):
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _replace(aside: Path, final: Path) -> None:
    """Rename a directory into place, over an older one of that name if there is one."""
    old = aside.with_name(f"{aside.name}.old")
    if final.exists():
        final.rename(old)
    aside.rename(final)
    files.sync_directory(final.parent)  # before the older one goes
    shutil.rmtree(old, ignore_errors=True)
