"""Checkpoints: safetensors and JSON, no pickle; whole or absent; verified before they are read.

    step-00000100/
        model.safetensors       weights and buffers
        optimizer.safetensors   the optimizer's tensors, named <parameter number>.<slot>
        state.json              everything else, the resolved experiment included
        SHA256SUMS              a digest of each file; `sha256sum -c SHA256SUMS` checks by hand

Loading libraries do not notice a flipped bit. The list of digests is therefore rebuilt from the
files and compared byte by byte, which also covers the list itself, missing files and added ones.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from train import files
from train.errors import CheckpointError

_SUMS = "SHA256SUMS"
_CONTENT = ("model.safetensors", "optimizer.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    Attributes:
        model: weights and buffers by name.
        optimizer: tensors by `<parameter number>.<slot>`.
        state: step, samples, best, scaler, config and whatever else the run recorded.
    """

    path: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    def restore(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Put weights and, where given, the optimizer's state in place.

        Raises:
            CheckpointError: the model is another one.
        """
        try:
            model.load_state_dict(self.model)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.path} holds another model: {error}", "use the experiment it was made with"
            ) from error
        if optimizer is None:
            return
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in self.optimizer.items():
            number, slot = name.split(".", 1)
            slots.setdefault(int(number), {})[slot] = tensor
        # The groups' settings come from the experiment, which is checked to be the same.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": slots, "param_groups": groups})


@dataclass(frozen=True)
class Saver:
    """What a run's checkpoints are made of, and where they go.

    Attributes:
        facts: what each checkpoint records beside the run's state.
        scaler: FP16's gradient scaler, if there is one.
    """

    root: Path
    keep: int
    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None
    facts: Mapping[str, Any]

    def save(self, state: Mapping[str, Any], *, best: bool) -> None:
        """Write a checkpoint of `state` (it holds `step`), then prune.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are untouched.
        """
        scaler = self.scaler.state_dict() if self.scaler else None
        content = {**state, "scaler": scaler, **self.facts}
        final = write(self.root, state["step"], self.model, self.optimizer, content)
        if best:
            files.point(self.root / "best", final.name)
        prune(self.root, self.keep)


def write(
    root: Path, step: int, model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]
) -> Path:
    """Write checkpoint `step` under `root`, move `latest` to it, and return its directory.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are untouched.
    """
    final = root / f"step-{step:08d}"
    aside = root / f".{final.name}.{os.getpid()}"
    slots = {
        f"{number}.{slot}": value
        for number, values in optimizer.state_dict()["state"].items()
        for slot, value in values.items()
        if isinstance(value, Tensor)
    }
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, content in (
            ("model.safetensors", save(_plain(model.state_dict()))),
            ("optimizer.safetensors", save(_plain(slots))),
            ("state.json", (json.dumps(dict(state), indent=1) + "\n").encode()),
        ):
            (aside / name).write_bytes(content)
            files.sync_file(aside / name)
        # From what the disk gives back, not from what memory held.
        (aside / _SUMS).write_bytes(_sums(aside))
        files.sync_file(aside / _SUMS)
        files.sync_directory(aside)
        _replace(aside, final)
        files.sync_directory(root)
        files.point(root / "latest", final.name)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"cannot write {final}: {error.strerror}",
            "make room or mend the disk, then add --resume; earlier checkpoints are whole",
        ) from error
    return final


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint directory, then load it onto the CPU.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    path = path.resolve()
    verify(path)
    state = json.loads((path / "state.json").read_bytes())
    model = load((path / "model.safetensors").read_bytes())
    optimizer = load((path / "optimizer.safetensors").read_bytes())
    return Checkpoint(path, model, optimizer, state)


def verify(path: Path) -> None:
    """Compare a checkpoint's files with its list of digests.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    fix = "use another checkpoint of the run, such as an older step-*"
    try:
        if not path.is_dir():
            raise CheckpointError(f"there is no checkpoint {path}", "name a step-* directory")
        for name in (*_CONTENT, _SUMS):
            if not (path / name).is_file():
                raise CheckpointError(f"{path / name} is missing", fix)
        recorded, found = (path / _SUMS).read_bytes(), _sums(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}", fix) from error
    if recorded != found:
        stated = set(recorded.splitlines())
        bad = [line.split()[-1].decode() for line in found.splitlines() if line not in stated]
        raise CheckpointError(
            f"{path / (bad[0] if bad else _SUMS)} is damaged: its SHA-256 is not the recorded one",
            fix,
        )


def steps(root: Path) -> list[Path]:
    """The checkpoint directories under `root`, newest first."""
    return sorted(root.glob("step-*"), reverse=True)


def newest(root: Path) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest whole checkpoint under `root`, and what is wrong with newer ones.

    Raises:
        CheckpointError: there are checkpoints, and none is whole.
    """
    damage: list[CheckpointError] = []
    for path in steps(root):
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
    wanted = {path.name for path in steps(root)[:keep]} | {
        link.readlink().name for link in (root / "latest", root / "best") if link.is_symlink()
    }
    for path in (*steps(root), *root.glob(".step-*")):
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _sums(path: Path) -> bytes:
    names = sorted(p.name for p in path.iterdir() if p.name != _SUMS)
    return "".join(f"{files.sha256_file(path / name)}  {name}\n" for name in names).encode()


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Clones: safetensors refuses tensors that share memory.
    whole = torch.contiguous_format
    return {name: t.detach().cpu().clone(memory_format=whole) for name, t in tensors.items()}


def _replace(aside: Path, final: Path) -> None:
    """Rename a directory into place, over an older one of that name if there is one."""
    old = aside.with_name(f"{aside.name}.old")
    if final.exists():
        final.rename(old)
    aside.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the model's tensors in name order: name, dtype, shape, little-endian bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_plain(model.state_dict()).items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
