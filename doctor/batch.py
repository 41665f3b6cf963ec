"""What starts containers in a cluster's jobs: enroot, Apptainer, Singularity."""

from __future__ import annotations

import re

from doctor import configured, distribution, kind
from doctor.finding import Finding, warn
from host.machine import Machine

TRIPS = (1, 17, 7)
"""A release of the toolkit: https://github.com/NVIDIA/nvidia-container-toolkit/issues/1093"""
_NAMESPACES = (
    ("user.max_user_namespaces", "0", "65536"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
)


def enroot(machine: Machine) -> Finding | None:
    """Containers of enroot get GPUs by a program of the toolkit's."""
    hooked = "98-nvidia.sh" in machine.names("/etc/enroot/hooks.d")
    if machine.has("nvidia-container-cli") and (hooked or machine.has("enroot")):
        return _enroot_trips(machine)
    if not hooked or machine.has("nvidia-container-cli"):
        return None
    return warn(
        "toolkit",
        "enroot is here, and nvidia-container-cli is not",
        "its containers with GPUs do not start (pyxis: container start failed)",
        f"{distribution.of(machine, distribution.TOOLKIT, distribution.APT_TOOLKIT)}, on each node",
    )


def apptainer(machine: Machine) -> Finding | None:
    """Containers of Apptainer, or of Singularity, start for whoever is not root."""
    name = next((each for each in ("apptainer", "singularity") if machine.has(each)), None)
    if name is None:
        return None
    # One that starts as root needs no namespaces of the user's.
    place = re.search(r"^LIBEXECDIR=(\S+)", machine.run(name, "buildcfg").out, re.MULTILINE)
    prefix = (machine.place(name) or f"/usr/bin/{name}").rpartition("/bin/")[0]
    folder = place.group(1) if place else f"{prefix}/libexec"
    if machine.exists(f"{folder}/{name}/bin/starter-suid"):
        return None
    if name == "singularity" and not machine.names(f"{folder}/{name}/bin"):
        return None  # an old one is elsewhere, and mostly starts as root
    return _without_profile(machine, name) or without_namespaces(machine, name.capitalize())


def _without_profile(machine: Machine, program: str) -> Finding | None:
    """Ubuntu from 23.10 on lets only programs with a profile make user namespaces."""
    shut = (machine.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") or "").strip()
    folder = "/etc/apparmor.d"
    profiles = machine.names(folder)
    known = not profiles or any(
        program in name
        or re.search(
            rf"/{program}/\S*starter|/bin/{program}\b", machine.read(f"{folder}/{name}") or ""
        )
        for name in profiles
    )
    if shut != "1" or known or kind.user(machine) == "0":
        return None
    return warn(
        "toolkit",
        f"{program}, and AppArmor lets nobody but root make user namespaces",
        "its containers do not start: failed to create user namespace: Permission denied",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and write the same into"
        f" /etc/sysctl.d; or an AppArmor profile for {program}"
        + "; or the package apptainer-suid"
        * (program == "apptainer"),
    )


def _enroot_trips(machine: Machine) -> Finding | None:
    """What keeps that program from starting a container."""
    barred = _without_profile(machine, "enroot")
    if barred is not None:
        return barred
    barred = without_namespaces(machine, "enroot")
    if barred is not None:
        return barred
    newer = distribution.of(machine, distribution.TOOLKIT, distribution.APT_NEWER_TOOLKIT)
    said = machine.run("nvidia-container-cli", "info")
    if said.code == 1 and "nvidia-fabricmanager/socket: permission denied" in said.said:
        return warn(
            "toolkit",
            "nvidia-container-cli may not look at the fabric manager's socket",
            "containers of enroot with GPUs do not start for whoever is not root",
            f"{newer}   # from 1.17.7 on it goes on without",
        )
    if configured.version(machine) == TRIPS:
        return tripped(machine)
    # https://github.com/NVIDIA/libnvidia-container/issues/187
    old = (0,) < configured.version(machine) < (1, 12)
    if old and machine.exists("/run/nvidia-persistenced/socket"):
        return warn(
            "toolkit",
            f"{'.'.join(map(str, configured.version(machine)))}, and enroot",
            "its containers with GPUs may not start: before 1.12 the persistence daemon's socket"
            " cannot be mounted (no such device or address)",
            newer,
        )
    return None


def without_namespaces(machine: Machine, who: str) -> Finding | None:
    """The kernel lets nobody but root make user namespaces, in which such containers run.

    https://github.com/NVIDIA/enroot/blob/main/doc/requirements.md
    """
    for name, bad, good in _NAMESPACES:
        own = name.startswith("kernel.") and kind.user(machine) == "0"  # forbids root nothing
        if not own and (machine.read(f"/proc/sys/{name.replace('.', '/')}") or "").strip() == bad:
            return warn(
                "toolkit",
                f"{name} is {bad}: nobody but root may make user namespaces",
                f"{who} starts no container",
                f"sudo sysctl -w {name}={good}, and write the same into /etc/sysctl.d",
            )
    return None


def tripped(machine: Machine) -> Finding:
    """With that release enroot's containers do not start."""
    return warn(
        "toolkit",
        f"{'.'.join(map(str, TRIPS))}, and enroot",
        "its containers with GPUs do not start for whoever is not root (device rules, permission"
        " denied)",
        distribution.of(machine, distribution.TOOLKIT, distribution.APT_NEWER_TOOLKIT),
    )
