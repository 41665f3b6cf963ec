"""What ran: the record that makes a result checkable later."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from host import HOME, INSIDE, dotted, git, launcher, limits
from host.text import without_secrets
from train.config import Config
from train.lanes.runtime import Runtime
from train.learn import optim, pretrained
from train.record import environment

_DECIDES = ("host", "train")


def describe(
    config: Config,
    runtime: Runtime,
    data: dict[str, Any] | None = None,
    first_pass: str | None = None,
    exchanged: list[int] | None = None,
) -> dict[str, Any]:
    """The manifest of a run that is about to start, ready for JSON. Holds no secrets.

    Args:
        exchanged: as `Reducer` has it.
    """
    commit, different = git.state()
    return {
        "command": ["python", "-m", "train", *map(without_secrets, sys.argv[1:])],
        "seed": config.seed,
        "world_size": runtime.world,
        "lanes": config.lanes,
        "micro_batch": config.micro_batch,
        "accumulation": len(runtime.lanes),
        "shares": [len(share) for share in runtime.shares],
        "exchanged": exchanged or [],
        "network": launcher.network(),
        "reproducibility": config.reproducibility,
        "numerics": config.numerics,
        "config": config.model_dump(mode="json"),
        "hardware": hardware(runtime),
        "fingerprint": _fingerprint(config, runtime),
        "first_pass": first_pass,
        "optimizer_kernel": optim.kernel(config),
        "environment": environment.recorded(os.environ),
        "git": {"commit": commit, "diff_sha256": different},
        "code": code(),
        "own_code": own_code(config),
        "first_weights_sha256": pretrained.sha256(config.model),
        "lock_sha256": lock_sha256(),
        "image": image(),
        "data_sha256": None if data is None else data["sha256"],
        "data": data,
        "versions": versions(),
    }


def _fingerprint(config: Config, runtime: Runtime) -> dict[str, str]:
    """Each probe's digest; none at `fast`, which promises no bits and pays for none."""
    if config.reproducibility == "fast":
        return {}
    return runtime.fingerprint


def hardware(runtime: Runtime) -> dict[str, Any]:
    """Devices, precision and threads."""
    gpu = runtime.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(runtime.device) if gpu else _cpu_model(),
        "type": runtime.device.type,
        "distributed": str(runtime.accelerator.distributed_type.value),
        "mixed_precision": runtime.accelerator.mixed_precision,
        "sharded": runtime.sharded,
        "stages": runtime.stages.count if runtime.stages else 1,
        "threads": runtime.threads,
        "cpus": limits.cpus(),
        "cpu": _cpu_model(),
        # Which vector instructions torch's kernels were chosen for.
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "driver": _text(Path("/sys/module/nvidia/version")),
        "system": platform.platform(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def versions() -> dict[str, str | None]:
    """Python, every installed package that the lock names, CUDA, cuDNN and NCCL."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    lock = _lock()
    text = lock.read_text() if lock.exists() else "torch==\ntorchvision==\naccelerate==\n"
    named = {_normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}
    found |= {name: version for name in sorted(named) if (version := _installed(name))}
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


@cache
def _installed(name: str) -> str | None:
    """A package's version; reading all of them takes a tenth of a second, so they are kept."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def code() -> dict[str, str]:
    """SHA-256 of each file that may decide bits; it is there in an image without git as well."""
    files = sorted(path for folder in _DECIDES for path in (HOME / folder).rglob("*.py"))
    return {
        str(path.relative_to(HOME)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def own_code(config: Config) -> dict[str, str]:
    """SHA-256 of each file of the user's that the experiment runs, by its module's name."""
    dotted.load_all(config.own_code)
    return dotted.imported(config.own_code.values())


def image() -> dict[str, Any] | None:
    """What the container's image says it is made of; None outside of one.

    `identity` is SHA-256 over the rest: base, system packages, Python and lock.
    """
    text = _text(INSIDE)
    return json.loads(text) if text else None


def lock_sha256() -> str | None:
    """SHA-256 of the lock that belongs to the installed torch's CUDA line."""
    path = _lock()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def _lock() -> Path:
    line = (torch.version.cuda or "").split(".")[0]
    return HOME / "requirements" / f"cuda{line}.txt"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cpu_model() -> str:
    lines = (_text(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
