"""Checkpoints: safetensors and JSON, no pickle; whole or absent; verified before they are read.

    step-00000100/
        model.safetensors       weights and buffers
        optimizer.safetensors   the optimizer's tensors, named <parameter number>.<slot>
        …                       the tensors of each other thing with state, by its name
        state.json              everything else, the resolved experiment included
        SHA256SUMS              a digest of each file; `sha256sum -c SHA256SUMS` checks by hand

Loading libraries do not notice a flipped bit. The list of digests is therefore rebuilt from the
files and compared byte by byte, which also covers the list itself, missing files and added ones.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from host.errors import CheckpointError
from train.learn.weights import Versions, contiguous, pack, put, unpack
from train.record import files, rundir
from train.record.facts import Facts
from train.record.stateful import split

_SUMS = "SHA256SUMS"
_SUFFIX = ".safetensors"
_ASIDE = re.compile(r"\.step-\d+\.\d+(\.old)?")  # the step, and the process that wrote it
MODEL = "model"
"""The name that the weights stand by; no other part may have it."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    Attributes:
        model: weights and buffers by name.
        versions: of their layout, by module; None in a checkpoint that does not say them.
        parts: of each thing with state, by its name: tensors and values by their names.
        state: step, best and whatever else the run recorded.
    """

    path: Path
    model: dict[str, Tensor]
    versions: Versions | None
    parts: dict[str, dict[str, Any]]
    state: dict[str, Any]

    @property
    def facts(self) -> Facts:
        """What it is a checkpoint of.

        Raises:
            CheckpointError: it does not say.
        """
        return Facts.read(self.state, str(self.path))

    def restore_model(self, model: nn.Module) -> None:
        """Put the weights in place.

        Raises:
            CheckpointError: the model is another one.
        """
        try:
            put(model, self.model, self.versions)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.path} holds another model: {error}", "use the experiment it was made with"
            ) from error


def write(
    root: Path,
    step: int,
    model: Mapping[str, Tensor],
    parts: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any],
) -> Path:
    """Write checkpoint `step` under `root`, move `latest` to it, and return its directory.

    Args:
        model: weights and buffers, as `model.state_dict()` gave them.
        parts: the state of each other thing that has some, by name.
        state: whatever else there is to say, for JSON.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are untouched.
    """
    final = root / rundir.name_of(step)
    aside = root / f".{final.name}.{os.getpid()}"
    content = {f"{MODEL}{_SUFFIX}": pack(model)}
    plain: dict[str, dict[str, Any]] = {}
    for name, values in parts.items():
        tensors, plain[name] = split(name, values)
        if tensors:
            content[f"{name}{_SUFFIX}"] = save(contiguous(tensors))
    content[rundir.STATE] = (json.dumps({**state, "parts": plain}, indent=1) + "\n").encode()
    # Of what is in memory: a digest of what the disk gives back would vouch for a bad write.
    content[_SUMS] = _sums(content)
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, data in content.items():
            (aside / name).write_bytes(data)
            files.sync_file(aside / name)
        files.sync_directory(aside)
        _replace(aside, final)
        files.sync_directory(root)
        files.point(root / "latest", final.name)
        if state.get("best_step") == step:
            files.point(root / "best", final.name)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        earlier = next((path.name for path in rundir.steps(root) if path != final), None)
        raise CheckpointError(
            f"cannot write {final}: {error.strerror}; the last whole checkpoint is {earlier}",
            "make room or mend the disk, then add --resume",
        ) from error
    return final


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint directory, and load what was verified onto the CPU.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    path = path.resolve()
    content = _verified(path)
    state = json.loads(content.pop(rundir.STATE))
    plain: dict[str, dict[str, Any]] = state.pop("parts", None) or _older(state)
    model, versions = unpack(content.pop(f"{MODEL}{_SUFFIX}"))
    tensors = {name.removesuffix(_SUFFIX): load(data) for name, data in content.items()}
    parts = {name: {**values, **tensors.get(name, {})} for name, values in plain.items()}
    return Checkpoint(path, model, versions, parts, state)


def _older(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What version 0.1 wrote in place of `parts`."""
    scaler = state.pop("scaler", None)
    return {"optimizer": {}, **({"scaler": scaler} if scaler else {})}


def _verified(path: Path) -> dict[str, bytes]:
    """A checkpoint's files by name, once all of them agree with its list of digests."""
    fix = "use another checkpoint of the run, such as an older step-*"
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}", "name a step-* directory")
    try:
        content = {file.name: file.read_bytes() for file in path.iterdir()}
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}", fix) from error
    listed = [
        line.split()[-1].decode(errors="replace")
        for line in content.get(_SUMS, b"").splitlines()
        if line.strip()
    ]
    for name in (f"{MODEL}{_SUFFIX}", rundir.STATE, _SUMS, *listed):
        if name not in content:
            raise CheckpointError(f"{path / name} is missing", fix)
    recorded = content.pop(_SUMS)
    found = _sums(content)
    if recorded != found:
        stated = set(recorded.splitlines())
        bad = [line.split()[-1].decode() for line in found.splitlines() if line not in stated]
        raise CheckpointError(
            f"{path / (bad[0] if bad else _SUMS)} is damaged: its SHA-256 is not the recorded one",
            fix,
        )
    return content


def newest(root: Path) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest whole checkpoint under `root`, and what is wrong with newer ones.

    Raises:
        CheckpointError: there are checkpoints, and none is whole.
    """
    damage: list[CheckpointError] = []
    for path in rundir.steps(root):
        try:
            return read(path), damage
        except CheckpointError as error:
            damage.append(error)
    if damage:
        raise CheckpointError(
            f"no checkpoint under {root} is whole; {damage[0].problem}",
            "restore one from a copy, or start again with another --run",
        )
    return None, []


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best, and what dead writers left."""
    wanted = {path.name for path in rundir.steps(root)[:keep]} | {
        link.readlink().name for link in (root / "latest", root / "best") if link.is_symlink()
    }
    left = [path for path in root.glob(".step-*") if _ASIDE.fullmatch(path.name)]
    for path in (*rundir.steps(root), *left):
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _sums(content: Mapping[str, bytes]) -> bytes:
    """The list that `sha256sum` would print of these files."""
    digests = ((hashlib.sha256(content[name]).hexdigest(), name) for name in sorted(content))
    return "".join(f"{digest}  {name}\n" for digest, name in digests).encode()


def _replace(aside: Path, final: Path) -> None:
    """Rename a directory into place, over an older one of that name if there is one."""
    old = aside.with_name(f"{aside.name}.old")
    if final.exists():
        final.rename(old)
    aside.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the model's tensors, as `tensors_sha256` takes it."""
    return tensors_sha256(contiguous(model.state_dict()))


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over tensors in name order: name, dtype, shape, little-endian bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
