"""Whether somebody else computes on the GPUs, or holds their memory."""

from __future__ import annotations

import re

from doctor import kind, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host import apps, exclusive, limits, nvidia, visible
from host.machine import Machine

_MOST = 6
"""Programs that are named: one training may be dozens."""


def _called(app: apps.App) -> str:
    """Its program and number; a process that is gone, or another container's, has no name."""
    name = "" if app.name.startswith("[") else app.name.rsplit("/", 1)[-1]
    return f"{name} (PID {app.pid})" if name else f"PID {app.pid}"


_STOP = "stop them: sudo fuser -v /dev/nvidia*"
_NOTEBOOKS = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "JPY_PARENT_PID", "JUPYTERHUB_USER")
_OF_NOTEBOOK = "mostly this notebook's own kernels: restart or shut down those that are done"
_OF_JOB = "tell the administrators, who may end it, or leave this node out: sbatch --exclude"
_OF_WINDOWS = "Windows' Task Manager says who (Details, the column Dedicated GPU memory)"
_OF_OTHERS = (
    "on the host, sudo fuser -v /dev/nvidia* says who. In Kubernetes other pods may share this GPU"
    " and its memory (time slicing): ask for one of your own"
)


def neighbours(machine: Machine) -> Finding:
    """Nobody else computes on the GPUs."""
    gpus = visible.seen(machine)
    if not gpus:
        return skip("busy GPUs", "no GPU")
    alone = _held_alone(machine, gpus) or _miscounted(machine, gpus)
    if alone is not None:
        return alone
    served = exclusive.served(machine, gpus)
    shown = {gpu.uuid for gpu in gpus if gpu.text("display_active") == "Enabled"}
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu not in served}
    used = [
        f"{by_uuid[app.uuid].label}: {_called(app)}"
        for app in apps.computing(machine)
        # Of which nothing is known, as under WSL, nothing is said.
        if app.uuid in by_uuid
        if by_uuid[app.uuid].text("mig.mode.current") != "Enabled"  # others have parts of their own
        if (app.name, app.memory) != ("[Not Found]", "[N/A]")
        if not (apps.is_small(app) or (app.uuid in shown and apps.is_window(app)))
    ]
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    windows = wsl.is_windows(machine)
    health = nvidia.health(machine) if inside else []
    still = {gpu.index for gpu in health if gpu.number("utilization.gpu") == 0}
    for gpu in gpus:  # another container's or user's may not be listed
        failed = any("requires reset" in value for value in gpu.row.values())
        # What is used is the machine's; nobody's any more; or meant so.
        cut = gpu.text("mig.mode.current") == "Enabled"
        if gpu.is_integrated or failed or gpu in served or cut:
            continue
        memory, total = gpu.number("memory.used"), gpu.number("memory.total")
        listed = any(row.startswith(f"{gpu.label}:") for row in used)
        # A desktop's programs are not listed, and take up to a half of a small card; nor is what
        # a container's own notebook holds.
        own = gpu.text("display_active") == "Enabled" or gpu.index in still
        own = own or windows  # whose desktop is on it
        most = 0.5 if own else 0.1
        if memory and total and memory > most * total and memory > 2048 and not listed:
            used.append(f"{gpu.label}: {memory / 1024:.0f} GiB by programs that are not shown")
    if not used:
        shared = ", ".join(gpu.label for gpu in served)
        return ok("busy GPUs", f"an MPS server shares {shared}" if served else "none")
    hidden = all("not shown" in row or re.search(r": PID \d+$", row) for row in used)
    coherent = [gpu for gpu in gpus if gpu.is_coherent]
    if coherent and hidden:
        return warn(
            "busy GPUs",
            "; ".join(used[:_MOST]),
            "on such a machine the kernel may keep what it read of files in a GPU's memory",
            "echo 3 | sudo tee /proc/sys/vm/drop_caches; what stays is a program's: sudo fuser -v"
            " /dev/nvidia*; drivers from 570 on give it back by themselves",
        )
    return warn(
        "busy GPUs",
        "; ".join(used[:_MOST]) + (f"; and {len(used) - _MOST} more" if used[_MOST:] else ""),
        "they share memory and time with this training",
        ("train on the others: GPUS=free; or " if _others(gpus, used) else "")
        + _mend(machine, used, hidden=hidden),
    )


def _mend(machine: Machine, used: list[str], *, hidden: bool) -> str:
    """How they are ended, or who may."""
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    if hidden and inside:
        notebook = any(name in machine.environ for name in _NOTEBOOKS)
        return _OF_NOTEBOOK if notebook else _OF_OTHERS
    if wsl.is_windows(machine):
        return _OF_WINDOWS
    if limits.in_job(machine.environ, machine.root):
        return _OF_JOB
    ollama = "sudo systemctl stop ollama (its service starts it again otherwise); or "
    return ollama * any("ollama" in row for row in used) + _STOP


def _others(gpus: list[nvidia.Gpu], used: list[str]) -> bool:
    """Whether some of them are not used."""
    return any(not any(row.startswith(f"{gpu.label}:") for row in used) for gpu in gpus)


def _held_alone(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU that lets one process compute, and has one."""
    for held in exclusive.held(machine, gpus):
        gpu, others = held.gpu, len(gpus) > 1
        if held.app is not None:
            who, fix = f"{_called(held.app)} has it", "end that one"
        else:
            used = gpu.number("memory.used") or 0
            who = f"one that is not shown has {used:.0f} MiB of it"
            fix = f"end it, such as a dead job's container: sudo fuser -v /dev/nvidia{gpu.index}"
        return fail(
            "busy GPUs",
            f"{gpu.label} is for one process alone ({held.mode}), and {who}",
            "CUDA refuses it to all others (busy or unavailable, 46)",
            f"{'GPUS=free; or ' * others}{fix}, or sudo nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    return None


def _miscounted(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU of which more memory is used than there is."""
    for gpu in gpus:
        memory, total = gpu.number("memory.used"), gpu.number("memory.total")
        if memory is None or not total or memory <= total:
            continue
        shared = "libvgpu.so" in (machine.read("/etc/ld.so.preload") or "")
        return fail(
            "busy GPUs",
            f"{gpu.label}: {memory:.0f} of {total:.0f} MiB are used, says nvidia-smi",
            "what shares this GPU among pods (HAMi's libvgpu.so) has miscounted, and refuses memory"
            if shared
            else "what stands between nvidia-smi and the driver has miscounted",
            "delete the pod and start it anew; HAMi 2.6.1 or newer counts right"
            if shared
            else "look what LD_PRELOAD and /etc/ld.so.preload name",
        )
    return None
