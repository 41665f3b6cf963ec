"""What the system leaves a training: processors, memory, shared memory, limits."""

from __future__ import annotations

import re

from doctor import cmdline, ended, kind, offline, ram, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, meminfo, visible
from host.machine import Machine
from host.text import whole

# The first microcode with which Intel's 13th and 14th generation is not driven to death.
_STEADY = 0x129
_LITTLE = 2 << 30  # bytes: torch and a small model
_OF_JOB = 8 << 30  # bytes; of a job with GPUs
# Of x86-64-v2, for which NumPy 2.4's binaries are built; this is how the kernel calls them.
_BASELINE = {"popcnt", "sse4_1", "sse4_2", "ssse3"}
_EACH = 2  # CPUs that a GPU needs at the least: for the trainer, and for what loads its data


def processors(machine: Machine) -> Finding:
    """They have what torch's binaries use, and no cgroup holds them back."""
    old = _instructions(machine)
    if old is not None:
        return old
    weak = _ageing(machine)
    if weak is not None:
        return warn(
            "CPUs",
            f"{weak}, with microcode of before 0x129",
            "it raises its own voltage until it ages: programs crash here and there, with errors"
            " that make no sense",
            "the newest BIOS, with Intel's default settings; if it goes on crashing, have it"
            " replaced (Intel has extended the warranty)",
        )
    there, quota = limits.affinity(machine.root), limits.cpu_quota(machine.root)
    bound = _bound(machine)
    if bound is not None and there > 1:
        return warn(
            "CPUs",
            f"{there}, and {bound} in the environment",
            "as torch is loaded, OpenMP binds the trainer to one core, and its loader processes"
            " with it",
            f"unset {bound.split('=')[0]}, or export OMP_PROC_BIND=false",
        )
    if quota is None or quota >= there:
        slow = offline.some(machine) or offline.held(machine) or offline.heated(machine)
        few = _of_step(machine, there) or cmdline.processors(machine) or _few(machine, there)
        return few or slow or ok("CPUs", f"{there}")
    seen = f"{quota:g} of {there}, by cgroup quota"
    # A quota stops all threads at once, the trainer's as well: it needs room.
    if quota >= 2 * _EACH * max(1, len(visible.seen(machine))):
        return ok("CPUs", seen)
    return warn(
        "CPUs",
        seen,
        "loaders and CPU training get no more; nproc and os.cpu_count say otherwise",
        _wider(machine, there),
    )


def _wider(machine: Machine, there: int) -> str:
    """How a quota is lifted, by whose it is."""
    group = machine.read("/proc/self/cgroup") or ""
    if kind.is_lxc(machine):
        return "on the host: incus (lxc) config unset NAME limits.cpu.allowance; Proxmox: cpulimit"
    if "user.slice" in group and not limits.in_container(machine.root):
        return "its administrator: sudo systemctl set-property user-$(id -u).slice CPUQuota="
    return f"docker run --cpus {there}, or resources.limits.cpu, or --cpus-per-task"


def _of_step(machine: Machine, there: int) -> Finding | None:
    """A step of Slurm's whose tasks have fewer CPUs than the job asked for.

    srun takes --cpus-per-task no more from sbatch, from 22.05 on: https://slurm.schedmd.com/srun.html
    """
    asked = whole(machine.environ.get("SLURM_CPUS_PER_TASK"))
    step = "SLURM_STEP_ID" in machine.environ and bool(visible.seen(machine))
    if asked is None or there >= asked or not step:
        return None
    return warn(
        "CPUs",
        f"{there} of the {asked} that the job asked for each task",
        "srun does not take that over from sbatch: all loader processes share it, the GPUs wait",
        f"srun --cpus-per-task={asked}, or export SRUN_CPUS_PER_TASK={asked} before srun",
    )


def _ageing(machine: Machine) -> str | None:
    """A processor of Intel's 13th or 14th generation without the mend for its voltage.

    https://community.intel.com/t5/Blogs/Tech-Innovation/Client/Intel-Core-13th-and-14th-Gen-Desktop-Instability-Root-Cause/post/1633239
    """
    text = machine.read("/proc/cpuinfo") or ""
    name = re.search(
        # The 14th does not say its number before its name; laptops' HX are others, and an i5
        # without a K is of an older kind.
        r"^model name\s*: (.*Intel.*(?:i5-1[34]600K\w*|i[79]-1[34][79]00(?:K\w*|F)?))(?!\w)",
        text,
        re.MULTILINE,
    )
    code = re.search(r"^microcode\s*: 0x([0-9a-f]{1,8})$", text, re.MULTILINE)
    if not name or not code or int(code.group(1), 16) >= _STEADY or kind.is_guest(machine):
        return None
    return name.group(1).strip()


def _instructions(machine: Machine) -> Finding | None:
    """What its binaries use and the processor, or the one that a virtual machine shows, has not."""
    flags = re.search(r"^flags\s*:(.*)", machine.read("/proc/cpuinfo") or "", re.MULTILINE)
    known = {*flags.group(1).split()} if flags else set()
    if not {"fpu", "sse2"} <= known or "avx2" in known:
        return None
    host = "in a virtual machine: give it the host's processor (-cpu host, host-passthrough)"
    if not known >= _BASELINE:
        return fail(
            "CPUs",
            f"without {', '.join(sorted(_BASELINE - known))} (x86-64-v2)",
            "NumPy and torch's libraries use such instructions: they end with an error, or with"
            " `Illegal instruction`",
            f"{host}; else another machine",
        )
    # torch 2.15 trains without AVX, as an emulated Nehalem (qemu-user) shows.
    return warn(
        "CPUs",
        f"without {'AVX2' if 'avx' in known else 'AVX'}",
        "numerics: portable needs AVX2",
        f"{host}; else --numerics native",
    )


def _bound(machine: Machine) -> str | None:
    """A variable that has GNU's OpenMP bind threads to cores: torch's begins with the first one."""
    contained = machine.has("docker") and machine.environ.get("ENGINE") != "local"
    if machine.environ.get("OMP_PROC_BIND", "").lower() == "false" or contained:
        return None  # a container is not told of them
    # One of whole sockets, or that names sets of cores, leaves the trainer more than one.
    if not re.match("(cores|threads)?$", machine.environ.get("OMP_PLACES", "").split("(")[0]):
        return None
    names = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
    return next((f"{n}={machine.environ[n]}" for n in names if machine.environ.get(n)), None)


def _few(machine: Machine, there: int) -> Finding | None:
    """Of a machine's many CPUs this process may use fewer than its GPUs need."""
    gpus, every = len(visible.seen(machine)), limits.online(machine.root) or 0
    # A job can have more of them for the asking.
    least = _EACH * (2 if limits.in_job(machine.environ, machine.root) else 1)
    alone = there == 1 and limits.in_job(machine.environ, machine.root)  # whatever there is else
    if not gpus or there >= least * gpus or (every < 2 * there and not alone):
        return None
    fix = "taskset -p -c $$ says which; docker run without --cpuset-cpus, or a wider one"
    if machine.environ.get("SLURM_JOB_ID"):
        fix = (
            "--cpus-per-task=8 for each process, to sbatch and to srun, which does not take it over"
        )
    elif any(name in machine.environ for name in ("PBS_JOBID", "LSB_JOBID")):
        fix = "ask for more with the job: ncpus= of PBS, -n of LSF"
    return warn(
        "CPUs",
        f"{there}{f' of {every}' * (every > there)}, for {gpus} GPU{'s' * (gpus > 1)}",
        "loader processes share them with the trainers: the GPUs wait for data",
        fix,
    )


def memory(machine: Machine) -> Finding:
    """Enough memory, within the cgroup's limit."""
    total, limit = meminfo.total(machine.root), limits.memory(machine.root)
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
    free, swapped = meminfo.free(machine.root), meminfo.swapped(machine.root)
    if free is not None and free < min(_LITTLE, 0.1 * total):
        out = f" and {swapped / 2**30:.1f} swapped out" if swapped >= 1 << 30 else ""
        return warn(
            "memory",
            f"{free / 2**30:.1f} of {seen} are free{out}",
            "other programs have the rest: a training would wait for the disk, or be killed",
            "ps aux --sort=-rss | head   # who has it",
        )
    known = ram.failing(machine) or cmdline.memory(machine, seen)
    for look in (
        ram.poisoned,
        ram.corrected,
        ended.slowed,
        ended.within,
        ram.set_aside,
        ram.bare,
        ram.strict,
        ended.at_all,
    ):
        known = known or look(machine, seen)
    known = known or _scant(machine, seen, limit)
    half = "; WSL takes half of Windows' unless .wslconfig says memory=" * wsl.is_windows(machine)
    return known or wsl.ignored(machine) or ok("memory", f"{seen}{half}")


def _scant(machine: Machine, seen: str, limit: int | None) -> Finding | None:
    """A job that took what its scheduler gives to whoever asks for nothing."""
    gpus = len(visible.seen(machine))
    if limit is None or not gpus or "SLURM_JOB_ID" not in machine.environ:
        return None
    if limit >= _OF_JOB:
        return None
    return warn(
        "memory",
        seen,
        "that is what Slurm gives where a job asks for none: loaders and CUDA take more soon",
        f"#SBATCH --mem={32 * gpus}G (or --mem-per-gpu=32G)",
    )
