"""Does a machine compute as another one: two manifests, factor by factor and probe by probe."""

import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from host import lanes
from host.errors import DataError, HostError, UsageError
from train.config import Config
from train.experiment.comparing import every_difference
from train.lanes.runtime import Runtime
from train.learn import optim
from train.record.provenance import describe

Manifest = Mapping[str, Any]

SHOWN = 8
"""Files that are named where many differ."""
# What follows from the launcher and the number of processes, or stands in `threads` already.
_PLACE = re.compile(
    "ACCELERATE_|FSDP_|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|TORCH_NCCL"
    "|KMP_AFFINITY|KMP_BLOCKTIME|GOMP_CPU_AFFINITY|OMP_PLACES|OMP_PROC_BIND|GLOO_SOCKET"
    "|TORCH_CPP_LOG_LEVEL"
    "|NCCL_(SOCKET|IB|NET|HCA|DEBUG|HOSTID|TOPO)"
    "|.*_(DIR|HOME|PATH)$"
)
# Knobs that change no bit, and say in which steps all processes exchange something.
_TOGETHER = ("checkpoint.every", "checkpoint.background", "log.every", "tripwire")
# Factors of some levels and numerics alone.
_DEPENDING = ("processes", "sharded weights", "device", "driver")
# GPUs and their libraries have no part in portable numerics.
_GPU = re.compile("(package|variable) (cudnn|nccl|CUDA_|CUDNN_|CUBLAS|NCCL_|NVIDIA_|PYTORCH_CUDA)")


def differences(recorded: Manifest, now: Manifest) -> list[str]:
    """Each factor that may change the bits and is not what was recorded, with both values."""
    bits, others = compared(recorded, now)
    return others + [f"this machine computes otherwise: {found}" for found in bits]


def compared(recorded: Manifest, now: Manifest) -> tuple[list[str], list[str]]:
    """The same in two: what gave other bits when it was tried, and what else is not as recorded."""
    others = [
        f"{name}: {before} recorded, {after} now" for name, before, after in unlike(recorded, now)
    ]
    # Of other data or another model, a first pass says nothing of the machine.
    task = ("data_sha256", "code", "own_code", "first_weights_sha256")
    same = all(recorded.get(name) == now.get(name) for name in task)
    return computing(recorded, now, same=same), others


def computing(recorded: Manifest, now: Manifest, *, same: bool = True) -> list[str]:
    """What gave other bits when it was tried.

    Args:
        same: whether both have the same experiment and data: else their first passes are others.
    """
    probes = other_probes(recorded, now)
    bits = [f"other bits in {probes}"] if probes else []
    passes = recorded.get("first_pass"), now.get("first_pass")
    if same and all(passes) and passes[0] != passes[1]:
        bits.append("other bits in the model's first pass")
    return bits


def other_probes(one: Manifest, other: Manifest) -> str:
    """Which of the fingerprints' probes gave other bits, for people; empty: none, or no such."""
    first, second = one.get("fingerprint") or {}, other.get("fingerprint") or {}
    both = [name for name in first if name in second]
    unlike = [name for name in both if first[name] != second[name]]
    more = f" and {len(unlike) - SHOWN} more" if len(unlike) > SHOWN else ""
    listed = ", ".join(unlike[:SHOWN])
    return f"{listed}{more} (of {len(both)} probes)" if unlike else ""


def _lanes(shares: list[range], balanced: bool) -> str:
    return f"{lanes.said(shares)} lanes" + f" (SHARES={lanes.MEASURED})" * balanced


def agree(config: Config, runtime: Runtime) -> None:
    """See that all processes compute alike. All of them call this together.

    Raises:
        UsageError: one of them trains another experiment than the first.
        HostError: one of them has other code, packages, kernels or variables than the first.
    """
    if runtime.control is None:
        return
    configs = runtime.gathered((platform.node(), config, runtime.shares, runtime.balanced))
    for rank, (there, other, shares, balanced) in enumerate(configs):
        knobs = other_knobs(configs[0][1], other)
        if knobs:
            where = "" if there == configs[0][0] else f" on {there}"
            raise UsageError(
                f"process {rank}{where} trains another experiment: {knobs}",
                "start all processes with the same words",
            )
        if (shares, balanced) != (runtime.shares, runtime.balanced):
            raise UsageError(
                f"SHARES= is not the same on all machines: here the processes run"
                f" {_lanes(runtime.shares, runtime.balanced)}, and on {there}"
                f" {_lanes(shares, balanced)}",
                "start all of them with the same SHARES",
            )
    if config.reproducibility == "fast":
        return
    with runtime.together():
        own = (platform.node(), describe(config, runtime))
    every: list[Any] = runtime.gathered(own)
    here, first = every[0]
    for rank, (there, other) in enumerate(every[1:], 1):
        found = [
            f"{name} is {theirs} there, and {ours} on process 0"
            for name, ours, theirs in unlike(first, other)
        ][:SHOWN]
        probes = other_probes(first, other)
        if probes:
            found.append(f"other bits in {probes}")
        if found:
            where = "" if there == here else f" on {there}"
            raise HostError(
                f"process {rank}{where} does not compute as the others: {'; '.join(found)}",
                "have all of them alike, or use --reproducibility fast",
            )


def other_knobs(first: Config, other: Config) -> str:
    """Which knobs are others that decide the result, or when processes meet; empty: none."""
    unlike = [
        (name, here, there)
        for name, here, there, free in every_difference(first, other)
        if not free or name in _TOGETHER
    ]
    said = [f"{name} is {there}, and {here} on the first" for name, here, there in unlike[:SHOWN]]
    return "; ".join(said)


def agree_on_data(runtime: Runtime, mark: Any) -> None:
    """See that all processes have the same data. All of them call this together.

    Args:
        mark: what tells data from other data.

    Raises:
        DataError: on every process, naming one that has others than the first.
    """
    every = runtime.gathered((platform.node(), mark))
    for rank, (there, other) in enumerate(every):
        if other != every[0][1]:
            where = "" if there == every[0][0] else f" on {there}"
            raise DataError(
                f"process {rank}{where} has other data than process 0",
                "copy the same data to all machines, or name a place that all of them see",
            )


def agree_on_pass(runtime: Runtime, first_pass: str | None) -> None:
    """See that the model gives the same on all processes. All of them call this together.

    Raises:
        HostError: on one of them it does not, though all probes were the same.
    """
    if runtime.control is None:
        return
    every: list[Any] = [None] * runtime.world
    dist.all_gather_object(every, (platform.node(), first_pass), group=runtime.control)
    for rank, (there, digest) in enumerate(every):
        if digest != every[0][1]:
            where = "" if there == every[0][0] else f" on {there}"
            raise HostError(
                f"process {rank}{where} does not compute as the others: other bits in the model's"
                " first pass",
                "have all machines alike, and a model that does not ask which process it is in; or"
                " use --reproducibility fast",
            )


def unlike(one: Manifest, other: Manifest) -> list[tuple[str, str, str]]:
    """Each factor that is not the same in both, with both values for people."""
    first, second = _factors(one), _factors(other)
    here, there = ({*each} for each in (first, second))
    # Where only one of the two depends on them.
    depending = {name for name in here ^ there if name in _DEPENDING or _GPU.match(name)}
    if one.get("numerics") == other.get("numerics"):
        depending &= {*_DEPENDING}
    names = sorted((here | there) - depending, key=lambda name: (name.split()[0], name))
    pairs = ((name, first.get(name, "none"), second.get(name, "none")) for name in names)
    return [(name, _short(a), _short(b)) for name, a, b in pairs if a != b]


def few(factors: Sequence[str]) -> list[str]:
    """The same for people: of many files of the code, the first ones and how many more."""
    code = [factor for factor in factors if factor.startswith("code ")]
    rest = code[SHOWN:]
    more = [f"{len(rest)} more files of the code"] if rest else []
    return [factor for factor in factors if factor not in rest] + more


def _factors(manifest: Manifest) -> dict[str, Any]:
    hardware = manifest.get("hardware", {})
    factors: dict[str, Any] = {"data": manifest.get("data_sha256")}
    factors["image"] = (manifest.get("image") or {}).get("identity")
    factors |= {f"code {name}": digest for name, digest in manifest.get("code", {}).items()}
    own = manifest.get("own_code", {})
    factors |= {f"code {name}": digest for name, digest in own.items()}
    factors |= {f"package {name}": v for name, v in manifest.get("versions", {}).items()}
    # What portable numerics leave of a CPU's kind shows in the probes.
    portable = manifest.get("numerics") == "portable"
    kind = () if portable else ("device", "driver")
    for name in (*kind, "mixed_precision", "threads", "cpu_capability"):
        factors[name] = hardware.get(name)
    factors["starting weights"] = manifest.get("first_weights_sha256")
    factors["optimizer kernel"] = manifest.get("optimizer_kernel", optim.OWN)
    variables = manifest.get("environment", {})
    factors |= {f"variable {n}": v for n, v in variables.items() if not _PLACE.match(n)}
    if portable:
        factors = {name: value for name, value in factors.items() if not _GPU.match(name)}
    if manifest.get("reproducibility") != "lockstep":
        factors["processes"] = manifest.get("world_size")
        factors["sharded weights"] = bool(hardware.get("sharded"))
    return factors


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text
