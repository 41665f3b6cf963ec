"""What the kernel says of the machine's memory: modules that fail, programs that it ended."""

from __future__ import annotations

import re
from contextlib import suppress

from doctor import kind, log, nccl
from doctor.finding import Finding, fail, warn
from host import limits, meminfo, pci, visible
from host.machine import Machine
from host.text import whole

_MANY = 1000
_SMALL = 1 << 20  # kB
_ASIDE = 0.25  # of the memory
_COUNTS = "/sys/devices/system/edac/mc"
_NAMES = (
    r"(python[\w.]*|pt_\w+|ray::[^)\"]*|torchrun|accelerate|deepspeed|llamafactory-cl\w*"
    r"|VLLM::\w*|yolo|nnUNet\w*|cicc|ptxas|cc1plus|nvcc|cudafe\+\+)"
)
_COMPILERS = ("cicc", "ptxas", "cc1plus", "nvcc", "cudafe++")
_ENDED = re.compile(
    rf"(?:([Mm]emory cgroup) o|O)ut of memory: Killed process \d+ \({_NAMES}\).*anon-rss:(\d+)kB"
)
# Corrected ones count by EDAC; a page that could not be taken out of use says so in other words.
_POISONED = re.compile(
    r"(?:Memory failure:|MCE:?) ?0x\w+: (?:Sending SIGBUS to|Killing) ([\w.-]+):\d+"
)
# What ends programs before the kernel must, and says so in the journal alone.
_EARLY = (
    (
        "systemd-oomd",
        re.compile(
            r"Killed /\S*/(session-\w+\.scope|[^/\s]*(?:vte|tmux|screen|konsole|[Tt]erminal|docker"
            r"|kitty|alacritty|ghostty|wezterm|ptyxis|-code|pycharm|jupyter)[^/\s]*) due"
        ),
    ),
    ("earlyoom", re.compile(rf'sending SIG\w+ to process \d+ (?:uid \d+ )?"{_NAMES}')),
)


def failing(machine: Machine) -> Finding | None:
    """A module whose errors could not be corrected."""
    row = log.last(machine, r"EDAC MC\d+: \d+ UE ") or ""
    where = re.search(r"EDAC MC\d+: \d+ UE .*? on (\S+)", row)
    counted = [
        name
        for name in machine.names(_COUNTS)
        if (whole(machine.read(f"{_COUNTS}/{name}/ue_count")) or 0) > 0
    ]
    if limits.in_container(machine.root) or not (row or counted):
        return None
    place = where.group(1) if where else counted[0] if counted else "a module"
    return fail(
        "memory",
        f"errors that could not be corrected (ECC): {place}",
        "a module of the machine's memory fails: weights may be wrong, the machine may freeze",
        "have that module replaced; which one it is: sudo ras-mc-ctl --error-count, or dmesg | grep"
        " EDAC",
    )


def poisoned(machine: Machine, seen: str) -> Finding | None:
    """A page whose content was lost, and whose program was ended; the page is out of use.

    https://docs.kernel.org/mm/hwpoison.html
    """
    found = [x for x in map(_POISONED.search, log.lines(machine) or []) if x]
    # The memory of Grace's GPUs is the kernel's as well, and has rows of its own.
    shared = any(re.search(r"\bG[BH]\d", gpu.name) for gpu in visible.seen(machine))
    if limits.in_container(machine.root) or not found or shared:
        return None
    times = f", {len(found)} times" * (len(found) > 1)
    return warn(
        "memory",
        f"{seen}; a page of it could not be read, and the kernel ended {found[-1].group(1)}{times}",
        "a module of the machine's memory fails: what is in it ends with Bus error",
        "have that module replaced; which one it is: sudo ras-mc-ctl --errors, sudo ipmitool sel"
        " list, or sudo dmesg | grep -i -A9 'hardware error'",
    )


def corrected(machine: Machine, seen: str) -> Finding | None:
    """A module whose errors are corrected by the thousand, for now."""
    told = [
        re.search(r"EDAC MC(\d+): (\d+) CE .*? on (\S+)", row) for row in log.lines(machine) or []
    ]
    count = sum(int(row.group(2)) for row in told if row)
    for name in machine.names(_COUNTS):
        count = max(count, whole(machine.read(f"{_COUNTS}/{name}/ce_count")) or 0)
    if limits.in_container(machine.root) or count < _MANY:
        return None
    place = next((f": {row.group(3)}" for row in reversed(told) if row), "")
    return warn(
        "memory",
        f"{seen}; {count:,} errors were corrected (ECC){place}",
        "a module is going bad: the next ones may not be corrected, and the machine stops",
        "have that module replaced (sudo dmidecode -t memory says where it is)",
    )


def set_aside(machine: Machine, seen: str) -> Finding | None:
    """Memory that is kept for huge pages, and that nobody uses."""
    total, free = meminfo.total(machine.root), meminfo.huge_free(machine.root)
    if total is None or free < _ASIDE * total:
        return None
    return warn(
        "memory",
        f"{seen}, of which {free / 2**30:.1f} are set aside as huge pages that nobody uses",
        "other programs do not get them, a training neither",
        "sudo sysctl vm.nr_hugepages=0, and take it out of /etc/sysctl.d (or hugepages= out of the"
        " kernel's command line)",
    )


def bare(machine: Machine, seen: str) -> Finding | None:
    """A part of the processors has no memory of its own, where NCCL looks for some.

    https://github.com/NVIDIA/nccl/pull/2059
    """
    if nccl.told(machine, "NCCL_CUMEM_HOST_ENABLE") == "0":
        return None
    cpus, memory = (_nodes(machine, name) for name in ("has_cpu", "has_memory"))
    if cpus <= memory or not memory or len(visible.seen(machine)) < 2:
        return None
    beside = {whole(machine.read(f"{card.path}/numa_node")) for card in pci.cards(machine)}
    if not beside & {None, *(cpus - memory)}:
        return None
    return warn(
        "memory",
        f"{seen}; {len(cpus - memory)} of {len(cpus)} NUMA nodes with processors have none",
        "NCCL of PyTorch from 2.7 on takes memory beside each GPU, and ends where there is none:"
        " Error while attaching to shared memory segment",
        "export NCCL_CUMEM_HOST_ENABLE=0; for good a module in each channel, or NPS1 in the BIOS",
    )


def _nodes(machine: Machine, name: str) -> set[int]:
    """Numbers of the NUMA nodes that have something; none where the system does not say."""
    with suppress(ValueError):
        return limits.listed(machine.read(f"/sys/devices/system/node/{name}") or "")
    return set()


def strict(machine: Machine, seen: str) -> Finding | None:
    """The kernel hands out no more than there is, used or not."""
    mode = (machine.read("/proc/sys/vm/overcommit_memory") or "").strip()
    limit, total = (meminfo.row(machine.root, name) or 0 for name in ("CommitLimit", "MemTotal"))
    if mode != "2" or limit > 2 * total > 0:
        return None
    return warn(
        "memory",
        f"{seen}; no more is promised than there is (vm.overcommit_memory 2)",
        "torch reserves far more than it uses, and so does each loader process: Cannot allocate"
        " memory, while most of it is free",
        "sudo sysctl vm.overcommit_memory=0, and take it out of /etc/sysctl.d",
    )


def ended_within(machine: Machine, seen: str) -> Finding | None:
    """Processes that the kernel ended because the limit of this container or job was reached."""
    count, limit = limits.oom_kills(machine.root) or 0, limits.memory(machine.root)
    if limit is None or not count:
        return None
    more = max(16, min(limit * 2, meminfo.total(machine.root) or limit * 2) >> 30)  # GiB
    fix = f"docker run --memory {more}g, or resources.limits.memory"
    if limits.in_job(machine.environ, machine.root):
        fix = f"--mem={more}G (or --mem-per-cpu) to sbatch and srun, or the like of your scheduler"
    return warn(
        "memory",
        f"{seen}, and the kernel has ended {count} process{'es' * (count > 1)} here that wanted"
        " more",
        "what is ended so says nothing: `Killed`, exit code 137; a loader's end ends the training",
        f"{fix}; or less at once: fewer --data.workers, a smaller batch or more lanes",
    )


def _ended_early(machine: Machine, seen: str) -> Finding | None:
    """A training, or the session that it ran in, that a service ended while memory was left."""
    for service, sign in _EARLY:
        words = ("-b", "-q", "--no-pager", "-o", "cat", "-n", "1000", "-u", service)
        rows = machine.run("journalctl", *words).out.splitlines()
        told = [row for row in map(sign.search, rows) if row]
        if told:
            return warn(
                "memory",
                f"{seen}; {service} has ended {told[-1].group(1)[:40]}",
                "it ends what takes much memory, with all that was started beside it, before the"
                " kernel would",
                "less at once: fewer --data.workers, a smaller batch or more lanes; or sudo"
                f" systemctl disable --now {service}",
            )
    return None


def _joined(said: list[str]) -> list[str]:
    """What kernels before 5.0 say in two lines, as later ones say it."""
    whose, rows = "Out of memory", []
    for row in said:
        first = re.search(r"(Memory cgroup o|O)ut of memory: Kill process", row)
        if first:
            whose = f"{first.group(1)}ut of memory"
        rows.append(re.sub(r"^(.*\] )(Killed process .*anon-rss)", rf"\1{whose}: \2", row))
    return rows


def _may_matter(machine: Machine, row: re.Match[str]) -> bool:
    """Whether an end within a limit may be of this user's training, and of no small program."""
    if not row.group(1):
        return True
    owner = re.search(r"\bUID:(\d+)", row.string)
    other = owner is not None and owner.group(1) not in ("0", kind.user(machine))
    return int(row.group(3)) >= _SMALL and not (other and kind.user(machine))


def _is_of_cuda(said: list[str], name: str) -> bool:
    """Whether a compiler of CUDA's was at work, of whose parts one compiles any C++."""
    return name != "cc1plus" or any(re.search(r"\b(?:cicc|ptxas|nvcc|cudafe)", row) for row in said)


def ended(machine: Machine, seen: str) -> Finding | None:
    """A training that was ended because memory ran out."""
    if limits.in_container(machine.root):
        return None
    said = log.lines(machine) or []
    found = [x for x in map(_ENDED.search, _joined(said)) if x and _may_matter(machine, x)]
    found = [x for x in found if _is_of_cuda(said, x.group(2))]
    if not found:
        return _ended_early(machine, seen)
    within, name, taken = found[-1].groups()
    size = int(taken) * 1024 / 2**30
    times = f", {len(found)} times" if len(found) > 1 else ""
    whose = "a container or service had no more of it" if within else "it ran out"
    if name in _COMPILERS:
        return warn(
            "memory",
            f"{seen}; {whose}, and the kernel ended {name}, which compiled CUDA code{times}",
            "each compiler takes gigabytes, and as many run as there are CPUs: the build ends",
            "MAX_JOBS=2 pip install --no-build-isolation …; or a wheel that is built already",
        )
    return warn(
        "memory",
        f"{seen}; {whose}, and the kernel ended {name}, which had {size:.1f} GiB{times}",
        "what is ended so says nothing: `Killed`, exit code 137",
        "less at once: fewer --data.workers, a smaller batch or more lanes; or more memory"
        + ": docker run --memory, in Kubernetes resources.limits.memory, a service's MemoryMax="
        * bool(within),
    )
