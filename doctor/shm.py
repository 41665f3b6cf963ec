"""Shared memory, through which processes hand each other what they have read."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, fail, ok, skip, warn
from host.machine import Machine

_SHARED = "/dev/shm"  # noqa: S108  (a mount, and no file that somebody else may have put there)
_MORE_SHARED = (
    "SHM_SIZE=8gb make train; docker run --shm-size=8g; in Kubernetes an emptyDir of medium Memory"
    " at /dev/shm; or --data.workers 0"
)
_LEAST_SHARED = 512 << 20  # bytes of /dev/shm: a few batches on their way


def _is_anothers(machine: Machine, path: str) -> bool:
    """Whether a folder is neither this user's nor theirs who may write anywhere."""
    owner = machine.run("stat", "-c", "%u", path).out.strip()
    return kind.user(machine) not in ("", "0", owner)


def shared_memory(machine: Machine) -> Finding:
    """Room in /dev/shm, through which loader processes hand samples over."""
    size, free = machine.size(_SHARED), machine.free(_SHARED)
    if size is None:
        return skip("shared memory", "not known on this system")
    mode = machine.run("stat", "-c", "%a", _SHARED).out.strip()
    if (
        re.fullmatch("[0-7]{3,4}", mode)
        and not int(mode[-1]) & 2
        and _is_anothers(machine, _SHARED)
    ):
        return fail(
            "shared memory",
            f"this user may not write in {_SHARED}",
            "loader processes and NCCL share memory there: they end with Permission denied",
            f"sudo chmod 1777 {_SHARED}, and mend what sets it otherwise: /etc/fstab",
        )
    seen, fix = f"{size / 2**30:.2f} GiB", _MORE_SHARED
    if size >= 1 << 30 and (free is None or free >= _LEAST_SHARED):
        return ok("shared memory", seen)
    if size >= 1 << 30 and free is not None:
        left = any(name.startswith("torch_") for name in machine.names(_SHARED))
        seen = f"{free / 2**30:.2f} of {seen} are free"
        fix = f"see who has it: ls -l {_SHARED}; or {fix}"
        if left:
            fix = f"end what is left of an earlier training, and rm {_SHARED}/torch_*; or {fix}"
    return warn(
        "shared memory",
        seen,
        "loader processes die (Bus error) or hang, NCCL does not start",
        fix,
    )
