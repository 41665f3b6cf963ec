"""What ran: the record that makes a result checkable later."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from train.config import Config
from train.runtime import Runtime

_PACKAGES = ("torch", "torchvision", "accelerate", "datasets", "numpy", "safetensors", "pillow")
_HOME = Path(__file__).resolve().parent.parent


def describe(config: Config, runtime: Runtime, data_sha256: str | None) -> dict[str, Any]:
    """The manifest of a run that is about to start, ready for JSON. Holds no secrets."""
    return {
        "command": ["python", "-m", "train", *sys.argv[1:]],
        "world_size": runtime.world,
        "lanes": config.lanes,
        "micro_batch": config.micro_batch,
        "accumulation": len(runtime.lanes),
        "reproducibility": config.reproducibility,
        "config": config.model_dump(mode="json"),
        "hardware": hardware(runtime),
        "git": git(),
        "lock_sha256": lock_sha256(),
        "data_sha256": data_sha256,
        "versions": versions(),
    }


def hardware(runtime: Runtime) -> dict[str, Any]:
    """Devices, precision and threads."""
    gpu = runtime.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(runtime.device) if gpu else _cpu_model(),
        "type": runtime.device.type,
        "distributed": str(runtime.accelerator.distributed_type.value),
        "mixed_precision": runtime.accelerator.mixed_precision,
        "threads": runtime.threads,
    }


def versions() -> dict[str, str | None]:
    """Python, the packages that compute, CUDA, cuDNN and NCCL."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def git() -> dict[str, str | None]:
    """Commit, and SHA-256 of what differs from it (None: nothing); both None outside git."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("diff", "HEAD", "--binary") if commit else None
    digest = hashlib.sha256(changed.encode()).hexdigest() if changed else None
    return {"commit": commit, "diff_sha256": digest}


def lock_sha256() -> str | None:
    """SHA-256 of the lock that belongs to the installed torch's CUDA line."""
    line = (torch.version.cuda or "").split(".")[0]
    path = _HOME / "requirements" / f"cuda{line}.txt"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_HOME), *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
