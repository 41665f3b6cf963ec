"""What the system leaves a training: processors, memory, shared memory, disks, clock, owner."""

from __future__ import annotations

import math
import re

from doctor import ram
from doctor.finding import Finding, fail, ok, skip, warn
from host import INSIDE, limits
from host.machine import Machine
from host.text import whole

# The lock's oldest package is younger: a clock before this fails every certificate.
_YOUNGEST = 1767225600  # 2026-01-01
_RUN = 1e9  # bytes: checkpoints of a middling model
_FILES = 1000  # that a run and its caches make
_LITTLE = 2 << 30  # bytes: torch and a small model
_THREADS = 64  # that a training may well start for each CPU


def processors(machine: Machine) -> Finding:
    """They have what torch's binaries use, and no cgroup holds them back."""
    flags = re.search(r"^flags\s*:(.*)", machine.read("/proc/cpuinfo") or "", re.MULTILINE)
    known = flags.group(1).split() if flags else []
    if {"fpu", "sse2"} <= {*known} and "avx2" not in known:
        lacks = "AVX2" if "avx" in known else "AVX"
        unwell = warn if "avx" in known else fail
        return unwell(
            "CPUs",
            f"without {lacks}",
            "numerics: portable needs AVX2"
            if "avx" in known
            else "torch's binaries use such instructions: they end with `Illegal instruction`",
            "in a virtual machine: give it the host's processor (-cpu host, host-passthrough)"
            + ("; else --numerics native" if "avx" in known else "; else another machine"),
        )
    there, quota = limits.affinity(machine.root), limits.cpu_quota(machine.root)
    if quota is None or quota >= there:
        return ok("CPUs", f"{there}")
    return warn(
        "CPUs",
        f"{quota:g} of {there}, by cgroup quota",
        "loaders and CPU training get no more; nproc and os.cpu_count say otherwise",
        f"docker run --cpus {there}, or resources.limits.cpu, or --cpus-per-task",
    )


def memory(machine: Machine) -> Finding:
    """Enough memory, within the cgroup's limit."""
    total, limit = limits.memory_total(machine.root), limits.memory(machine.root)
    if total is None:
        return skip("memory", "not known on this system")
    seen = f"{total / 2**30:.1f} GiB"
    if limit is not None:
        seen = f"{limit / 2**30:.1f} of {seen}, by cgroup limit"
    if (limit or total) < 4 << 30:
        return warn(
            "memory",
            seen,
            "torch alone takes 1 GiB a process; what takes more is killed",
            "docker run --memory 16g, or resources.limits.memory, or --mem; or fewer processes"
            " and workers",
        )
    free, swapped = limits.memory_free(machine.root), limits.swapped(machine.root)
    if free is not None and free < min(_LITTLE, 0.1 * total):
        out = f" and {swapped / 2**30:.1f} swapped out" if swapped >= 1 << 30 else ""
        return warn(
            "memory",
            f"{free / 2**30:.1f} of {seen} are free{out}",
            "other programs have the rest: a training would wait for the disk, or be killed",
            "ps aux --sort=-rss | head   # who has it",
        )
    return ram.failing(machine) or ram.ended(machine, seen) or ok("memory", seen)


def shared_memory(machine: Machine) -> Finding:
    """Room in /dev/shm, through which loader processes hand samples over."""
    size = machine.size("/dev/shm")  # noqa: S108
    if size is None:
        return skip("shared memory", "not known on this system")
    seen = f"{size / 2**30:.2f} GiB"
    if size < 1 << 30:
        return warn(
            "shared memory",
            seen,
            "loader processes die (Bus error) or hang, NCCL does not start",
            "SHM_SIZE=8gb make train; docker run --shm-size=8g; in Kubernetes an emptyDir of medium"
            " Memory at /dev/shm; or --data.workers 0",
        )
    return ok("shared memory", seen)


def user_limits(machine: Machine) -> Finding:
    """Limits that NCCL and threads run into: locked memory, stack, open files."""
    text = machine.read("/proc/self/limits")
    if text is None:
        return skip("limits", "not known on this system")
    told = [_limit(text, name) for name in ("locked memory", "stack size", "open files")]
    locked, stack, files = (math.inf if bound is None else bound for bound in told)
    # Registered memory counts as locked: only InfiniBand and its like register any.
    # Compose lifts the limit for containers.
    fabric = machine.names("/sys/class/infiniband") and not machine.has("docker")
    if fabric and locked < math.inf:
        return warn(
            "limits",
            f"memlock {locked / 1024:.0f} KiB, with InfiniBand here",
            "NCCL cannot register memory: it fails, or takes the slow way",
            "docker run --ulimit memlock=-1; in /etc/security/limits.conf: * - memlock unlimited",
        )
    if stack < 8 << 20:
        return warn(
            "limits",
            f"stack {stack / 1024:.0f} KiB",
            "deep calls crash without a word",
            "ulimit -s 65536; docker run --ulimit stack=67108864",
        )
    if files < 1024:
        return warn(
            "limits",
            f"{files} open files",
            "loader processes run out of them",
            "ulimit -n 65536; docker run --ulimit nofile=65536",
        )
    most, cpus = limits.processes(machine.root), limits.cpus(machine.root)
    if most is not None and most < _THREADS * cpus:
        return warn(
            "limits",
            f"{most:,} processes and threads at most (pids.max), on {cpus} CPUs",
            "each CPU gets threads of trainers, loaders and BLAS: Resource temporarily unavailable",
            "podman run --pids-limit -1 (or pids_limit = 0 in containers.conf); docker run"
            " --pids-limit -1; in Kubernetes podPidsLimit of the kubelet",
        )
    words = [
        "not known" if b is None else "unlimited" if b == math.inf else f"{b:.0f}" for b in told
    ]
    return ok("limits", f"memlock {words[0]}, stack {words[1]}, open files {words[2]}")


def _limit(text: str, name: str) -> float | None:
    """A soft limit of /proc/self/limits; None where it cannot be read."""
    found = re.search(rf"^Max {name} +(unlimited|[0-9]{{1,19}})\s", text, re.MULTILINE)
    if found is None:
        return None
    return math.inf if found.group(1) == "unlimited" else int(found.group(1))


def disk(machine: Machine) -> Finding:
    """Room where runs, caches and the local environment are written."""
    free = [
        (place, machine.free(place if machine.exists(place) else machine.home))
        for place in _written(machine)
    ]
    known = [(place, room) for place, room in free if room is not None]
    if not known:
        return skip("disk", "not known on this system")
    place, least = min(known, key=lambda pair: pair[1])
    seen = f"{least / 1e9:.1f} GB free for {place.rsplit('/', 1)[1]}"
    fix = "make room, or put runs/ on another disk: ln -s /big/runs runs"
    files = [machine.files(p if machine.exists(p) else machine.home) for p, _ in known]
    fewest = min((count for count in files if count is not None), default=_FILES)
    if fewest < _FILES:
        return fail(
            "disk",
            f"{seen}, but {fewest:,} more files at most (inodes)",
            "`No space left on device` would end the run, whatever df says",
            "du --inodes -x -d3 / 2>/dev/null | sort -n | tail   # where they are; or put runs/ on"
            " another disk: ln -s /big/runs runs",
        )
    if least < _RUN:
        return fail("disk", seen, "a checkpoint would not fit, and the run would end there", fix)
    place = machine.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    # Docker mounts its own so: whoever wants to compile there adds :exec.
    inside = limits.in_container(machine.root)
    if not inside and "noexec" in _options(machine, place):
        return warn(
            "disk",
            f"{seen}; {place} is mounted noexec",
            "what --model.compile true builds there cannot be loaded (failed to map segment)",
            f"sudo mount -o remount,exec {place}; or TMPDIR= a folder on another file system",
        )
    if least < 5e9:
        return warn("disk", seen, "a few checkpoints or a data set fill it", fix)
    return ok("disk", seen)


def clock(machine: Machine) -> Finding:
    """The clock is not years behind."""
    said = machine.run("date", "-u", "+%s").out.strip()
    now = whole(said)
    if now is None:
        return skip("clock", "not known on this system")
    if now < _YOUNGEST:
        return fail(
            "clock",
            "it is years behind",
            "certificates look as if they were not valid yet",
            "sudo timedatectl set-ntp true; where it stays so, systemctl status systemd-timesyncd"
            " says why; until then sudo date -s 'YEAR-MONTH-DAY HOUR:MINUTE'",
        )
    return ok("clock", "right")


def synchronised(machine: Machine) -> Finding:
    """The clock follows a time server, where it is for this system to see to it."""
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    said = machine.run("timedatectl", "show", "-p", "NTPSynchronized", "--value").out.strip()
    if "microsoft" in release or said not in ("yes", "no"):
        return skip("clock's server", "another system sets the clock")
    if said == "yes":
        return ok("clock's server", "followed")
    return warn(
        "clock's server",
        "not followed",
        "figures of several machines cannot be compared",
        "sudo timedatectl set-ntp true",
    )


def owner(machine: Machine) -> Finding:
    """What is written into can be written by the caller."""
    me = machine.run("id", "-u").out.strip()
    for path in _written(machine):
        if not machine.exists(path) or machine.run("test", "-w", path).code != 1:
            continue
        name = path.rsplit("/", 1)[1]
        if _is_read_only(machine, path):
            return fail(
                "owner",
                f"{name}/ is on a file system that is mounted read-only",
                "nothing can be saved there",
                f"in a container: docker run -v $PWD/{name}:{path}; on a host that was not meant"
                " to be so: sudo dmesg | grep -i 'remounting filesystem read-only'",
            )
        user = machine.run("stat", "-c", "%u", path).out.strip() or "somebody else"
        return fail(
            "owner",
            f"{name}/ belongs to UID {user}, and cannot be written by {me}",
            "nothing can be saved there; a container that ran as root leaves this",
            f"sudo chown -R $(id -u):$(id -g) {name}   # if it is yours",
        )
    return ok("owner", f"UID {me}" if me else "the caller")


def _written(machine: Machine) -> list[str]:
    """The folders that a training writes into."""
    cache = "/cache" if machine.exists(str(INSIDE)) else f"{machine.home}/.cache"
    return [f"{machine.home}/runs", cache]


def _options(machine: Machine, path: str) -> list[str]:
    """What a folder's file system is mounted with, where it has one of its own."""
    text = machine.read("/proc/self/mounts") or machine.read("/proc/mounts") or ""
    rows = [row.split() for row in text.splitlines()]
    return next((row[3].split(",") for row in rows if len(row) > 3 and row[1] == path), [])


def _is_read_only(machine: Machine, path: str) -> bool:
    """Whether the file system that a folder is on takes no writes."""
    rows = [row.split() for row in (machine.read("/proc/self/mounts") or "").splitlines()]
    mounts = [(row[1], row[3].split(",")) for row in rows if len(row) > 3]
    above = [m for m in mounts if f"{path}/".startswith(f"{m[0].rstrip('/')}/")]
    return bool(above) and "ro" in max(above, key=lambda mount: len(mount[0]))[1]
