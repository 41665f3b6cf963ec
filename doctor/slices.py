"""Units of systemd that may open named devices alone, and this process in one of them."""

from __future__ import annotations

import re

from doctor import unsigned
from doctor.finding import Finding, fail
from host import limits
from host.machine import Machine


def closed(machine: Machine) -> str | None:
    """The unit that keeps this process from the GPUs; None where none does."""
    return _by_policy(machine) or _filtered(machine)


def shut(machine: Machine, seen: str, unit: str) -> Finding:
    """What is said of it, beside what nvidia-smi says."""
    if _is_a_schedulers(machine):
        return fail(
            "driver",
            f"{seen}; this node gives its GPUs to Slurm's jobs, and to no other session ({unit})",
            "the driver has the cards, and this session may not open them",
            f"srun --gpus=1 --pty bash, or sbatch --gpus=1; {unsigned.CPU}",
        )
    return fail(
        "driver",
        f"{seen}; {unit} may open only some devices (DevicePolicy)",
        "the driver has the cards, and whoever runs in that unit may not open them",
        f"sudo systemctl edit {unit}: [Slice] or [Service], DeviceAllow=char-nvidia* rw; sudo"
        f" systemctl daemon-reload; log in again; {unsigned.CPU}",
    )


def _is_a_schedulers(machine: Machine) -> bool:
    """Whether this is a session, and no job, on a node whose GPUs Slurm hands out."""
    if "SLURM_JOB_ID" in machine.environ or not machine.has("srun"):
        return False
    runs = machine.run("systemctl", "is-active", "slurmd").out.strip() == "active"
    return runs or machine.exists("/etc/slurm/gres.conf")


def _by_policy(machine: Machine) -> str | None:
    """The unit of systemd that this process is in and that may open named devices alone."""
    text = machine.read("/proc/self/cgroup") or ""
    for unit in re.findall(r"/([\w@:.\\-]+\.(?:slice|service|scope))", text):
        policy, allowed = (
            machine.run("systemctl", "show", unit, "-p", name).out
            for name in ("DevicePolicy", "DeviceAllow")
        )
        # Control and memory are opened to all sooner than a card.
        # By a name that the driver has; that of older ones opens nothing.
        has = machine.read("/proc/devices") or ""
        names = re.findall(r"char-(nvidia(?:\*|-frontend)?)(?=[ ;]|$)", allowed, re.MULTILINE)
        cards = "/dev/nvidia" in re.sub(r"/dev/nvidia(?!\d)", "", allowed) or any(
            name == "nvidia*" or not has or re.search(rf"(?m)^\s*195 {name}$", has)
            for name in names
        )
        given = policy.strip().partition("=")[2]
        few = given in ("closed", "strict") or (
            given == "auto" and re.search("/dev/|char-", allowed)
        )
        if few and not cards:
            return str(unit)
    return None


def _filtered(machine: Machine) -> str | None:
    """The unit whose filter of devices (eBPF) the kernel asks, where systemd says nothing of it."""
    found = re.match(r"0::(/\S*)", machine.read("/proc/self/cgroup") or "")
    if found is None or limits.in_container(machine.root):
        return None
    # A file that this user may not open says Permission denied.
    shut = "not permitted" in machine.run("dd", "if=/dev/nvidia0", "of=/dev/null", "count=0").said
    parts = found.group(1).strip("/").split("/")
    for count in range(len(parts), 0, -1):
        place = f"/sys/fs/cgroup/{'/'.join(parts[:count])}"
        if "cgroup_device" in machine.run("bpftool", "cgroup", "show", place).out:  # root's to ask
            return parts[count - 1]
    return (
        next((part for part in reversed(parts) if part.endswith(".slice")), None) if shut else None
    )
