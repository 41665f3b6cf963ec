"""Why nothing loads the module of CUDA's memory, nvidia_uvm."""

from __future__ import annotations

import re

from doctor import distribution, kind, refused
from doctor.finding import Finding, fail, warn
from host.machine import Machine

# Of engines in whose containers no program may load a module.
_LOADS_NOTHING = ("/etc/enroot/enroot.conf", "/etc/apptainer", "/etc/singularity")


def unloaded(machine: Machine, version: str) -> Finding | None:
    """Why nothing will load its module."""
    barred = _barred(machine)
    if barred is not None:
        return fail(
            "driver",
            f"{version}; {barred} keeps the module nvidia_uvm from being loaded",
            "nvidia-smi does without it, and CUDA does not start (unknown error, 999)",
            f"take its line out of {barred}, then sudo modprobe nvidia_uvm",
        )
    if _never_loaded(machine):
        why, fix = (
            "elsewhere the first program loads it; on NixOS CUDA does not start (unknown error)",
            'sudo modprobe nvidia-uvm; for good boot.kernelModules = [ "nvidia-uvm" ];',
        )
        if "nixos" not in distribution.names(machine):
            why = "elsewhere the first program loads it; none in a container of enroot or Apptainer"
            why += " may"
            fix = "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c=0, by a unit at each boot"
        return warn("driver", f"{version}; the module nvidia_uvm is not loaded", why, fix)
    if _not_built(machine):
        again = distribution.build(machine, "install the driver anew")
        return fail(
            "driver",
            f"{version}; there is no module nvidia_uvm for the kernel that runs",
            "nvidia-smi does without it, and CUDA does not start (unknown error, 999)",
            f"USE=uvm, then {again}" if "gentoo" in distribution.names(machine) else again,
        )
    locked = refused.reason(machine)
    if locked is not None:
        seen, why, fix = locked
        return fail(
            "driver",
            f"{version}; nvidia_uvm is not loaded, and cannot be: {seen}",
            f"CUDA does not start without it (unknown error, 999): {why}",
            fix,
        )
    unmade = _unmade(machine)
    if unmade is not None:
        return warn(
            "driver",
            f"{version}; nvidia_uvm is not loaded, and {unmade}",
            "that loads it for whoever is not root: CUDA does not start (unknown error, 999)",
            "sudo modprobe nvidia_uvm; for good: install nvidia-modprobe, or echo nvidia_uvm | sudo"
            " tee /etc/modules-load.d/nvidia-uvm.conf",
        )
    return None


def _barred(machine: Machine) -> str | None:
    """A file of modprobe's that starts something else in its place."""
    sign = re.compile(r"(?m)^\s*install\s+nvidia[-_]uvm\s+\S*/(?:false|true)\b")
    for folder in ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"):
        for name in machine.names(folder):
            if sign.search(machine.read(f"{folder}/{name}") or ""):
                return f"{folder}/{name}"
    return None


def _not_built(machine: Machine) -> bool:
    """Whether the driver's other modules stand on the disk, and this one does not."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    if not re.fullmatch(r"[\w.+~-]+", running, re.ASCII):
        return False
    folder = f"/lib/modules/{running}"
    for place in ("video", "updates/dkms", "extra", "extra/nvidia", "kernel/drivers/video"):
        there = [name.partition(".")[0] for name in machine.names(f"{folder}/{place}")]
        if "nvidia" in there:
            return "nvidia-uvm" not in there
    return False


def not_loaded(machine: Machine) -> bool:
    """Whether the driver's module is loaded, and not that for GPUs' memory."""
    modules = machine.read("/proc/modules") or ""
    return re.search(r"^nvidia ", modules, re.MULTILINE) is not None and (
        "nvidia_uvm " not in modules
    )


def _unmade(machine: Machine) -> str | None:
    """Why nobody but root could load it."""
    if kind.user(machine) in ("", "0") or machine.exists("/dev/nvidia-uvm"):
        return None
    if re.search(r"^NoNewPrivs:\s*1", machine.read("/proc/self/status") or "", re.MULTILINE):
        return "this shell or service may not run nvidia-modprobe as root (NoNewPrivs)"
    programs = machine.names("/usr/bin")  # a record without them says nothing
    lacking = bool(programs) and "nvidia-modprobe" not in programs
    return "there is no nvidia-modprobe" if lacking and not machine.has("nvidia-modprobe") else None


def _never_loaded(machine: Machine) -> bool:
    """Whether the module for GPUs' memory is missing where no program may load it."""
    if "nixos" in distribution.names(machine):
        return True
    # Where the host's own programs load it, a container finds it.
    ready = "nvidia-modprobe" in machine.names("/usr/bin") and "SLURM_JOB_ID" not in machine.environ
    return not ready and any(map(machine.exists, _LOADS_NOTHING))
