"""GPUs that are cut into instances (MIG)."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, fail, ok, skip, warn
from host import apps, limits, nvidia, visible
from host.machine import Machine


def examine(machine: Machine) -> Finding:
    """No GPU is cut into instances."""
    gpus = visible.seen(machine)
    cut = [g for g in gpus if g.text("mig.mode.current") == "Enabled"]
    if not any(g.text("mig.mode.current") for g in gpus):
        return _gone(machine) or skip("MIG", "no GPU that says")
    if not cut:
        return _to_be_cut(machine, gpus) or ok("MIG", "off")
    empty = _without_instances(machine, cut)
    given = limits.in_container(machine.root) or "KUBERNETES_SERVICE_HOST" in machine.environ
    if given and not empty:
        return ok("MIG", "this container has an instance, a part of a GPU")
    found = _not_given(machine, empty) or _half_way(machine, cut) or _uncut(machine, cut, gpus)
    if found is not None:
        return found
    if len(gpus) == 1 and machine.environ.get("GPUS") in (None, "", "1"):
        return ok("MIG", "on: a training gets one instance of the GPU, the first if none is named")
    return warn(
        "MIG",
        f"on: {', '.join(g.label for g in cut)}",
        "a process gets one instance, a part of the GPU, and instances cannot train together",
        "train on one: CUDA_VISIBLE_DEVICES=MIG-… (nvidia-smi -L); or, with nothing running,"
        f" sudo nvidia-smi -i {cut[0].row['index']} -mig 0",
    )


def _gone(machine: Machine) -> Finding | None:
    """CUDA_VISIBLE_DEVICES names an instance that there is not, any more."""
    named = machine.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    listed = machine.run("nvidia-smi", "-L").out if named.startswith("MIG-") else ""
    names = re.findall(r"\(UUID: (MIG-[^)]+)\)", listed)
    # Drivers before 470 named it MIG-GPU-…/1/0, and later ones may still take that.
    known = named.startswith("MIG-GPU-") or any(name.startswith(named) for name in names)
    if known or not listed.startswith("GPU "):
        return None
    return fail(
        "MIG",
        f"CUDA_VISIBLE_DEVICES names {named}, which no GPU here has",
        "CUDA finds no device; instances that are made anew, as after each start of the machine,"
        " may have other names",
        "export CUDA_VISIBLE_DEVICES= one that nvidia-smi -L lists; or unset it",
    )


def _not_given(machine: Machine, empty: list[nvidia.Gpu]) -> Finding | None:
    """A container that was given a GPU, and no instance of it."""
    lxc = kind.is_lxc(machine)
    if (
        not (lxc or limits.in_container(machine.root))
        or not empty
        or machine.names("/dev/nvidia-caps")
    ):
        return None
    return fail(
        "MIG",
        f"on, and this container was given none of its instances: {empty[0].label}",
        "CUDA finds no device: an instance has devices of its own below /dev/nvidia-caps",
        _hand_over(machine, lxc=lxc),
    )


def _hand_over(machine: Machine, *, lxc: bool) -> str:
    """How a container gets one."""
    if lxc:
        return (
            "on the host hand them over: Incus with gputype=mig and mig.uuid=…; LXC with entries"
            " for /dev/nvidia-caps/* and their number in /proc/devices"
        )
    if limits.is_gvisor(machine.root):
        return "gVisor never passes them on: a whole GPU, or another runtime, as runc"
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        return (
            "ask for one in the pod's resources.limits (nvidia.com/mig-1g.5gb: 1); if the node has"
            " none (nvidia-smi mig -lgi), have its administrators make them, or switch MIG off"
        )
    return "start it with --gpus device=0:0 (GPU:instance), or NVIDIA_VISIBLE_DEVICES=MIG-…"


def _to_be_cut(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """MIG was switched on, and waits for a reset."""
    asked = {gpu.index: gpu.text("mig.mode.pending") for gpu in nvidia.health(machine)}
    waiting = [gpu for gpu in gpus if asked.get(gpu.index) == "Enabled"]
    if not waiting:
        return None
    numbers = ",".join(gpu.index for gpu in waiting)
    return warn(
        "MIG",
        f"to be switched on, and still off: {', '.join(gpu.label for gpu in waiting)}",
        "there are no instances until a reset, which waits for what uses the GPU (DCGM as well);"
        " after it a program gets an instance alone",
        f"end that (sudo fuser -v /dev/nvidia*), then sudo nvidia-smi --gpu-reset -i {numbers}, or"
        f" reboot; to keep it whole, sudo nvidia-smi -i {numbers} -mig 0",
    )


def _half_way(machine: Machine, cut: list[nvidia.Gpu]) -> Finding | None:
    """MIG was switched off, and waits for a reset."""
    asked = {gpu.index: gpu.text("mig.mode.pending") for gpu in nvidia.health(machine)}
    waiting = [gpu for gpu in cut if asked.get(gpu.index) == "Disabled"]
    if not waiting:
        return None
    return fail(
        "MIG",
        f"to be switched off, and still on: {', '.join(gpu.label for gpu in waiting)}",
        "CUDA finds none of these until a reset",
        f"sudo nvidia-smi --gpu-reset -i {','.join(gpu.index for gpu in waiting)}, with nothing"
        " running; where that is Not Supported (a virtual machine), reboot",
    )


def _uncut(machine: Machine, cut: list[nvidia.Gpu], gpus: list[nvidia.Gpu]) -> Finding | None:
    """MIG is on, and nobody has made instances."""
    empty = _without_instances(machine, cut)
    if not empty:
        return None
    others = [g.index for g in gpus if g not in cut]
    other = f"; or GPUS={','.join(others)}," if others else ""
    numbers = ",".join(g.index for g in empty)
    return fail(
        "MIG",
        f"on, and there is no instance: {', '.join(g.label for g in empty)}",
        "CUDA does not find these: with MIG a program computes on an instance alone",
        f"with nothing running, sudo nvidia-smi -i {numbers} -mig 0; or make"
        f" instances: sudo nvidia-smi mig -lgip, then -cgi … -C{other}; where mig -lgi lists some:"
        " sudo nvidia-smi mig -cci, which lets programs compute in them",
    )


def _without_instances(machine: Machine, cut: list[nvidia.Gpu]) -> list[nvidia.Gpu]:
    """Those of which nvidia-smi lists no instance, where it lists any GPU."""
    listed = machine.run("nvidia-smi", "-L").out
    parts = dict(re.findall(r"^GPU (\d+):.*\n?((?:\s+MIG .*\n?)*)", listed, re.MULTILINE))
    computing = {app.uuid for app in apps.computing(machine)}
    return [gpu for gpu in cut if parts.get(gpu.index) == "" and gpu.uuid not in computing]
