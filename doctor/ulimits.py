"""Limits of a user's processes that NCCL, loaders and threads run into."""

from __future__ import annotations

import math
import re

from doctor import kind, nccl, ports
from doctor.finding import Finding, fail, ok, skip, warn
from host import fleet, limits, meminfo, nvidia, visible
from host.machine import Machine
from host.text import whole

_MANY = 4  # machines: https://github.com/goodfire-ai/spd/pull/957
_LARGE = 64 << 30  # bytes
_IPC_LOCK = 14  # the capability with which the limit does not hold
_OF_TRAINER, _OF_LOADERS = 8, 1024  # threads for each CPU, for each GPU
_THREADS = 64  # that a training may well start for each CPU
# Which scheduler's daemon starts jobs, by a variable of theirs.
_DAEMONS = {"PBS_JOBID": "pbs.service", "LSB_JOBID": "lsfd.service"}
_PIDS = (
    "podman run --pids-limit -1 (or pids_limit = 0 in containers.conf); docker run --pids-limit -1;"
    " in Kubernetes podPidsLimit of the kubelet"
)
_NPROC = (
    "ulimit -u $(ulimit -Hu); for good `* soft nproc unlimited` in a file of"
    " /etc/security/limits.d that comes after 20-nproc.conf, and log in again"
)


def examine(machine: Machine) -> Finding:
    """Limits that NCCL and threads run into: locked memory, stack, open files."""
    text = machine.read("/proc/self/limits")
    if text is None:
        return skip("limits", "not known on this system")
    told = [_limit(text, name) for name in ("locked memory", "stack size", "open files")]
    locked, stack, files = (math.inf if bound is None else bound for bound in told)
    if locked < math.inf and _registers(machine):
        return warn(
            "limits",
            f"memlock {locked / 1024:.0f} KiB, with InfiniBand here",
            "NCCL cannot register memory: it fails, or takes the slow way",
            _unlocked(machine),
        )
    if stack < 8 << 20:
        return warn(
            "limits",
            f"stack {stack / 1024:.0f} KiB",
            "deep calls crash without a word",
            "ulimit -s 65536; docker run --ulimit stack=67108864",
        )
    if files < 1024 or (files == 1024 and fleet.count(machine.environ) >= _MANY):
        return warn(
            "limits",
            f"{files:.0f} open files",
            "NCCL between machines, and loader processes, run out of them: Too many open files",
            "ulimit -n $(ulimit -Hn); docker run --ulimit nofile=65536; for good"
            " LimitNOFILE= of containerd, slurmd or whatever starts it",
        )
    few = _little_space(machine, text) or _few_threads(machine, text) or _no_files(machine)
    few = few or _short_files(text)
    few = few or (None if machine.has("docker") else _ended_at_logout(machine))
    if few is not None:
        return few
    words = [
        "not known" if b is None else "unlimited" if b == math.inf else f"{b:.0f}" for b in told
    ]
    return ok("limits", f"memlock {words[0]}, stack {words[1]}, open files {words[2]}")


def _registers(machine: Machine) -> bool:
    """Whether memory is registered with a network card, which counts as locked."""
    outside = machine.environ.get("ENGINE") == "local" or "SLURM_JOB_ID" in machine.environ
    if machine.has("docker") and not outside:  # Compose lifts the limit for containers
        return False
    paths = [
        f"{nccl.FABRIC}/{device}/ports/{port}"
        for device in machine.names(nccl.FABRIC)
        for port in machine.names(f"{nccl.FABRIC}/{device}/ports")
    ]
    # Many a card of Ethernet shows itself as RoCE, which one machine does not use.
    if not ports.serve_training(machine) or kind.may(machine, _IPC_LOCK):
        return False
    ethernet = bool(paths) and all(ports.over_ethernet(machine, path) for path in paths)
    return bool(machine.names(nccl.FABRIC)) and (not ethernet or fleet.several(machine.environ))


def _unlocked(machine: Machine) -> str:
    """How the limit of locked memory is lifted for what runs here."""
    environ = machine.environ
    if "SLURM_JOB_ID" in environ:
        return (
            "ulimit -l unlimited in the job; for good LimitMEMLOCK=infinity in slurmd.service, and"
            " PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        )
    if "KUBERNETES_SERVICE_HOST" in environ:
        return (
            'in the pod\'s securityContext capabilities: add: ["IPC_LOCK"]; or on its node'
            " LimitMEMLOCK=infinity in containerd.service, and the pod anew"
        )
    daemon = next((unit for name, unit in _DAEMONS.items() if name in environ), None)
    if daemon is not None:
        return (
            "ulimit -l unlimited in the job; for good (its administrators) LimitMEMLOCK=infinity in"
            f" {daemon} on the nodes"
        )
    return f"docker run --ulimit memlock=-1; {_lifted(machine)}"


def _lifted(machine: Machine) -> str:
    """How the limit of locked memory is lifted for a user's own sessions."""
    folder = "/etc/security/limits.d"
    files = ["/etc/security/limits.conf", *(f"{folder}/{name}" for name in machine.names(folder))]
    for file in files:
        if re.search(
            r"(?m)^\s*\*\s+(?:-|hard)\s+memlock\s+(?:unlimited|infinity|-1)\b",
            machine.read(file) or "",
        ):
            return (
                f"{file} lifts it already, and this session began before, or by a service that does"
                " not read that: log in again, or LimitMEMLOCK=infinity in the service"
            )
    return "in /etc/security/limits.conf: * - memlock unlimited, and log in again"


def _little_space(machine: Machine, text: str) -> Finding | None:
    """CUDA reserves addresses for all memory of machine and GPUs, and uses few of them."""
    space = _limit(text, "address space")
    data = _limit(text, "data size")  # from kernel 4.7 on these are of it, too
    name, unit = ("addresses", "v") if space is not None else ("data", "d")
    space = data if space is None else space
    gpus = nvidia.ask(machine)[1]
    needed = (meminfo.total(machine.root) or 0) + sum(
        (gpu.number("memory.total") or 0) * 2**20 for gpu in gpus
    )
    if space is None or not gpus or space >= needed:
        return None
    return fail(
        "limits",
        f"{space / 2**30:.0f} GiB of {name} at most (ulimit -{unit})",
        "CUDA reserves far more than it uses: it starts with an out of memory, or not at all",
        f"ulimit -{unit} unlimited; in a job ask for real memory (h_rss, --mem) in place of h_vmem",
    )


def _short_files(text: str) -> Finding | None:
    """Files may not grow over a size: a checkpoint, a cache of data, a download ends there."""
    most = _limit(text, "file size")
    if most is None or most >= _LARGE:
        return None
    return warn(
        "limits",
        f"files of {most / 2**30:.1f} GiB at most (ulimit -f)",
        "what writes a larger one ends: File too large, or File size limit exceeded",
        "ulimit -f unlimited; for good take fsize out of /etc/security/limits.conf and limits.d, or"
        " LimitFSIZE= out of the service, and log in again",
    )


def _ended_at_logout(machine: Machine) -> Finding | None:
    """Whoever logs out ends all that he has started, under tmux or nohup as well.

    https://github.com/konstruktoid/ansible-role-hardening/issues/719
    """
    told = _logind(machine)
    # What was started in a unit of its own is not ended.
    group = machine.read("/proc/self/cgroup") or "session-"
    apart = limits.in_job(machine.environ, machine.root) or limits.in_container(machine.root)
    job = apart or "session-" not in group
    user = machine.run("id", "-un").out.strip()
    ended = told.get("KillUserProcesses") in ("yes", "true", "1")
    alone = told.get("KillOnlyUsers", "").split()
    spared = user in told.get("KillExcludeUsers", "").split() or (alone and user not in alone)
    if not ended or spared or job or kind.user(machine) == "0":
        return None
    if user in machine.names("/var/lib/systemd/linger"):
        return None
    return warn(
        "limits",
        "KillUserProcesses=yes in logind.conf: what a user has started ends as he logs out",
        "a training under tmux or nohup ends with its ssh connection; one in Docker does not",
        "loginctl enable-linger, and start it by systemd-run --user --scope tmux; or"
        " KillUserProcesses=no, and sudo systemctl restart systemd-logind",
    )


def _logind(machine: Machine) -> dict[str, str]:
    """What systemd-logind is told; of files with one name the administrator's counts."""
    files: dict[str, str] = {}
    for place in ("/lib/systemd", "/usr/lib/systemd", "/run/systemd", "/etc/systemd"):
        folder = f"{place}/logind.conf.d"
        files.update({name: f"{folder}/{name}" for name in machine.names(folder)})
    texts = [machine.read(files[name]) or "" for name in sorted(files)]
    said = "\n".join([machine.read("/etc/systemd/logind.conf") or "", *texts])
    return dict(re.findall(r"(?m)^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", said))


def _no_files(machine: Machine) -> Finding | None:
    numbers = [whole(word) for word in (machine.read("/proc/sys/fs/file-nr") or "").split()]
    if len(numbers) != 3 or None in numbers:
        return None
    used, _, most = (number or 0 for number in numbers)
    if not most or used < 0.95 * most:
        return None
    return warn(
        "limits",
        f"{used:,} of {most:,} files are open on this machine",
        "whoever opens one more ends: Too many open files in system",
        f"sudo sysctl fs.file-max={4 * most}; sudo lsof | awk '{{print $1}}' | sort | uniq -c says"
        " whose they are",
    )


def _few_threads(machine: Machine, text: str) -> Finding | None:
    """Fewer processes and threads are allowed than trainers, loaders and their libraries start."""
    # A trainer's own threads, and loaders' for each GPU.
    cpus, gpus = limits.cpus(machine.root), max(1, len(visible.seen(machine)))
    least = min(_THREADS * cpus, _OF_TRAINER * cpus + _OF_LOADERS * gpus)
    group, user = limits.processes(machine.root), _limit(text, "processes")
    if re.search(r"^Uid:\s+0\s", machine.read("/proc/self/status") or "", re.MULTILINE):
        user = None  # it does not hold for root
    held = [
        (most, f"({name}), on {cpus} CPUs", fix)
        for most, name, fix in (
            (group, "pids.max", _PIDS),
            (user, "ulimit -u", _NPROC),
        )
        if most is not None and most <= least
    ]
    if not held:
        return None
    most, words, fix = min(held, key=lambda each: each[0])
    return warn(
        "limits",
        f"{most:,} processes and threads at most {words}",
        "each CPU gets threads of trainers, loaders and BLAS: Resource temporarily unavailable",
        f"{fix}. Where others decide that: export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1, and"
        " fewer --data.workers",
    )


def _limit(text: str, name: str) -> float | None:
    """A soft limit of /proc/self/limits; None where it cannot be read."""
    found = re.search(rf"^Max {name} +(unlimited|[0-9]{{1,19}})\s", text, re.MULTILINE)
    if found is None:
        return None
    return math.inf if found.group(1) == "unlimited" else int(found.group(1))
