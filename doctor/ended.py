"""Programs that were ended, or slowed down, because memory ran out."""

from __future__ import annotations

import re

from doctor import kind, log
from doctor.finding import Finding, warn
from host import limits, meminfo
from host.machine import Machine

_SMALL = 1 << 20  # kB
_NAMES = (
    r"(python[\w.]*|pt_\w+|ray::[^)\"]*|torchrun|accelerate|deepspeed|llamafactory-cl\w*"
    r"|VLLM::\w*|yolo|nnUNet\w*|cicc|ptxas|cc1plus|nvcc|cudafe\+\+)"
)
_COMPILERS = ("cicc", "ptxas", "cc1plus", "nvcc", "cudafe++")
_ENDED = re.compile(
    rf"(?:([Mm]emory cgroup) o|O)ut of memory: Killed process \d+ \({_NAMES}\).*anon-rss:(\d+)kB"
)
# What ends programs before the kernel must, and says so in the journal alone.
_EARLY = (
    (
        "systemd-oomd",
        re.compile(
            r"Killed /\S*/(session-\w+\.scope|[^/\s]*(?:vte|tmux|screen|konsole|terminal|docker"
            r"|kitty|alacritty|ghostty|wezterm|ptyxis|terminator|tilix|[-.](?:code|cursor|windsurf)\b"
            r"|pycharm|jupyter|libpod)[^/\s]*|tab\(\d+\)\.scope)(?:/\S*)? due",
            re.IGNORECASE,
        ),
    ),
    ("earlyoom", re.compile(rf'sending SIG\w+ to process \d+ (?:uid \d+ )?"{_NAMES}')),
)


def within(machine: Machine, seen: str) -> Finding | None:
    """Processes that the kernel ended because the limit of this container or job was reached."""
    count, limit = limits.oom_kills(machine.root) or 0, limits.memory(machine.root)
    if limit is None or not count:
        return None
    more = max(16, min(limit * 2, meminfo.total(machine.root) or limit * 2) >> 30)  # GiB
    fix = f"docker run --memory {more}g, or resources.limits.memory"
    if limits.in_job(machine.environ, machine.root):
        fix = f"--mem={more}G (or --mem-per-cpu) to sbatch and srun, or the like of your scheduler"
    elif not limits.in_container(machine.root) and not kind.is_lxc(machine):
        fix = (
            f"its administrator: sudo systemctl set-property user-$(id -u).slice MemoryMax={more}G"
        )
    return warn(
        "memory",
        f"{seen}, and the kernel has ended {count} process{'es' * (count > 1)} here that wanted"
        " more",
        "what is ended so says nothing: `Killed`, exit code 137; a loader's end ends the training",
        f"{fix}; or less at once: fewer --data.workers, a smaller batch or more lanes",
    )


def slowed(machine: Machine, seen: str) -> Finding | None:
    """A cgroup's memory.high is reached: the kernel lets its programs wait rather than end them.

    https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    most = limits.memory_slowed(machine.root)
    if most is None:
        return None
    more = "sudo systemctl set-property user-$(id -u).slice MemoryHigh=infinity"
    if limits.in_container(machine.root):
        more = "resources.limits.memory, of which memory.high is a part; docker run --memory"
    elif limits.in_job(machine.environ, machine.root):
        more = "--mem of sbatch and srun, or the like of your scheduler"
    return warn(
        "memory",
        f"{seen}; a control group may have {most / 2**30:.1f} GiB (memory.high), and has them",
        "the kernel slows all its programs down, this one as well",
        f"less at once: fewer --data.workers, a smaller batch; or more: {more}",
    )


def more(machine: Machine) -> str:
    """By what a training gets more memory, by who limits it."""
    if "SLURM_JOB_ID" in machine.environ:
        return "#SBATCH --mem=64G (or --mem-per-gpu)"
    return "docker run --memory, in Kubernetes resources.limits.memory, a service's MemoryMax="


def _early(machine: Machine, seen: str) -> Finding | None:
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
    """Whether an end may be of this user's training, and within a limit of no small program."""
    owner = re.search(r"\bUID:(\d+)", row.string)
    me = kind.user(machine)
    other = owner is not None and owner.group(1) not in ("0", me) and me != "0"
    if not row.group(1):
        return not other
    return int(row.group(3)) >= _SMALL and not (other and kind.user(machine))


def _is_of_cuda(said: list[str], name: str) -> bool:
    """Whether a compiler of CUDA's was at work, of whose parts one compiles any C++."""
    return name != "cc1plus" or any(re.search(r"\b(?:cicc|ptxas|nvcc|cudafe)", row) for row in said)


def at_all(machine: Machine, seen: str) -> Finding | None:
    """A training that was ended because memory ran out."""
    if limits.in_container(machine.root):
        return None
    said = log.lines(machine) or []
    found = [x for x in map(_ENDED.search, _joined(said)) if x and _may_matter(machine, x)]
    found = [x for x in found if _is_of_cuda(said, x.group(2))]
    if not found:
        return _early(machine, seen)
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
        + f": {more(machine)}" * bool(within),
    )
