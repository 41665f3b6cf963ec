"""What this process may use: CPUs by affinity and cgroup quota, memory by cgroup limit.

Standard library only, from Python 3.8 on: `doctor` asks before anything is installed. Cgroups of
version 2 and 1; a limit may stand at any level above the process. `root` is where the machine's
files are, "/" but for recorded machines. Source: cgroup-v2.rst and cgroup-v1/ of the kernel.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping

from host import launcher, meminfo

ROOT = Path("/")
_ONLINE = "sys/devices/system/cpu/online"
_PRESENT = "sys/devices/system/cpu/present"
# Version 1 says "no limit" with the largest number of whole pages.
_UNLIMITED = 1 << 60
_NEARLY = 0.95
# Of a container: Docker's, Podman's, and what Kubernetes mounts into a pod.
_SIGNS = (
    ".dockerenv",
    "run/.containerenv",
    "run/secrets/kubernetes.io",
    "var/run/secrets/kubernetes.io",
)
_FILES = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": ("memory.max", "memory.high", "memory.limit_in_bytes"),
}


def cpus(root: Path = ROOT) -> int:
    """CPUs worth a thread each; at least 1. `os.cpu_count` knows neither affinity nor quota."""
    quota = cpu_quota(root)
    count = affinity(root)
    return max(1, count if quota is None else min(count, int(quota)))


def cpus_each(root: Path = ROOT) -> int:
    """CPUs for each of the processes that a launcher started on this machine; at least 1."""
    return max(1, cpus(root) // launcher.local_world())


def affinity(root: Path = ROOT) -> int:
    """CPUs that this process may be scheduled on."""
    with suppress(OSError, StopIteration, ValueError, IndexError):
        rows = (root / "proc/self/status").read_text().splitlines()
        allowed = next(row for row in rows if row.startswith("Cpus_allowed_list:"))
        count = len(listed(allowed.split(":")[1]))
        if count > 0:
            return count
    return os.cpu_count() or 1  # macOS has no affinity


def online(root: Path = ROOT) -> int | None:
    """CPUs that the machine runs on, whoever may use them; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return len(listed((root / _ONLINE).read_text())) or None
    return None


def present(root: Path = ROOT) -> int | None:
    """CPUs that the machine has, switched off ones too; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return len(listed((root / _PRESENT).read_text())) or None
    return None


def listed(text: str) -> set[int]:
    """The numbers that a list has, as in 0-3,8."""
    spans = [span.split("-") for span in text.strip().split(",")]
    return {n for span in spans for n in range(int(span[0]), min(int(span[-1]), 4095) + 1)}


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the tightest cgroup leaves; None where there is no limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory(root: Path = ROOT) -> int | None:
    """Bytes of the tightest cgroup's limit; None where there is none below the machine's memory."""
    limits = [
        bound
        for folder in _folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for bound in _number(folder / name)
        if bound < _UNLIMITED
    ]
    limit, total = min(limits, default=None), meminfo.total(root)
    return None if limit is None or (total is not None and limit >= total) else limit


def memory_slowed(root: Path = ROOT) -> int | None:
    """Bytes of a cgroup's memory.high that is reached: above it programs are slowed down."""
    for folder in _folders(root, "memory"):
        for most in _number(folder / "memory.high"):
            for used in _number(folder / "memory.current"):
                if _kept(folder, used) >= _NEARLY * most:
                    return most
    return None


def memory_used(root: Path = ROOT) -> int | None:
    """Bytes that count against the innermost cgroup's limit and cannot be dropped at need."""
    for folder in _folders(root, "memory"):
        for name in ("memory.current", "memory.usage_in_bytes"):
            for used in _number(folder / name):
                return _kept(folder, used)
    return None


def is_gvisor(root: Path = ROOT) -> bool:
    """Whether the kernel is gVisor's, wherever that runs (Modal, Kubernetes' sandboxes)."""
    with suppress(OSError, ValueError):
        return "Sun Jan 10 15:06:54 PST 2016" in (root / "proc/version").read_text()
    return False


def in_container(root: Path = ROOT) -> bool:
    """Whether this is a container of Docker, Podman or Kubernetes."""
    if any((root / name).exists() for name in _SIGNS):
        return True
    if is_gvisor(root):
        return True
    with suppress(OSError, ValueError):
        groups = (root / "proc/self/cgroup").read_text()
        if "kubepods" in groups:
            return True
        # A host's programs are in groups of their own, also where its root is an overlay.
        first = (root / "proc/mounts").read_text().split("\n", maxsplit=1)[0]
        # containerd keeps its layers apart from a system's own.
        layered = first.startswith("overlay / ") and "/io.containerd.snapshotter" in first
        return layered or (groups == "0::/\n" and first.startswith("overlay / "))
    return False


def in_job(environ: Mapping[str, str], root: Path = ROOT) -> bool:
    """Whether this is a job of a scheduler, which may have been given some of the devices."""
    if any(name in environ for name in ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID")):
        return True
    with suppress(OSError, ValueError):
        text = (root / "proc/self/cgroup").read_text()
        return any(word in text for word in ("slurm", "/job_", "/lsf", "/pbs", "htcondor"))
    return False


def job_gpus(environ: Mapping[str, str]) -> str | None:
    """The GPUs that Slurm says it has given to this job, or their number; None: none."""
    named = [environ.get(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")]
    asked = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
    counted = [environ.get(name) for name in asked]
    return next((said for said in [*named, *(n for n in counted if n != "0")] if said), None)


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes that the kernel has killed for memory so far, of the innermost cgroup that counts
    any; 0: of none.
    """
    known = None
    for folder in _folders(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _fields(folder / name).get("oom_kill")
            if count:
                return count
            known = count if known is None else known
    return known


def processes(root: Path = ROOT) -> int | None:
    """Processes and threads that this control group may have; None: as many as it likes."""
    found = [_number(folder / "pids.max") for folder in _folders(root, "pids")]
    return min((values[0] for values in found if values), default=None)


def sources(root: Path = ROOT) -> list[str]:
    """The files and folders that are looked at here: what a record of a machine must hold."""
    found = [root / "proc/self" / name for name in ("status", "cgroup")]
    found += [root / name for name in _SIGNS]
    found += [root / "proc/meminfo", root / _ONLINE]
    for controller, names in _FILES.items():
        found += [folder / name for folder in _folders(root, controller) for name in names]
    return [f"/{path.relative_to(root)}" for path in found if path.exists()]


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup folders for a controller, innermost first."""
    base = root / "sys/fs/cgroup"
    inner = "/"
    with suppress(OSError, ValueError):
        for row in (root / "proc/self/cgroup").read_text().splitlines():
            number, names, path = row.split(":", 2)
            if controller in names.split(","):
                base, inner = base / controller, path
                break
            if number == "0":
                inner = path
    # Inside a container the path may be the host's, and its own folder is what is mounted.
    place = base / inner.lstrip("/")
    place = place if place.is_dir() else base
    while True:
        yield place
        if place == base:
            return
        place = place.parent


def _kept(folder: Path, used: int) -> int:
    """Bytes of those that a cgroup uses, without files that are cached and can be dropped."""
    stat = _fields(folder / "memory.stat")
    kinds = ("inactive", "active")
    return used - sum(stat.get(f"total_{k}_file", stat.get(f"{k}_file", 0)) for k in kinds)


def _number(path: Path) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(path.read_text())]
    return []


def _fields(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        rows = (row.split() for row in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    return {}
