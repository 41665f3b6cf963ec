"""How the NVIDIA Container Toolkit is configured: its config.toml, and its version."""

from __future__ import annotations

import re

from doctor import kind
from doctor.engine import image_here, told
from doctor.finding import Finding, fail
from host import docker
from host.machine import Machine

_OPERATOR = "/usr/local/nvidia/toolkit"
_HOSTS_ALONE = (1, 17, 3)  # the first release
CONFIG = "/etc/nvidia-container-runtime/config.toml"
# Its hook asks for no-cgroups no more, as those before and after it do:
# https://github.com/NVIDIA/nvidia-container-toolkit/issues/1487
_UNHEEDING = (1, 18, 0)
UNASKED = (
    "sudo nvidia-ctk config --in-place --set"
    " accept-nvidia-visible-devices-envvar-when-unprivileged=true; or hand them over by CDI"
)
SET = "sudo nvidia-ctk config --in-place --set nvidia-container-cli"
NO_CGROUPS = f"{SET}.no-cgroups"
_UNASKED = r"^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false"
_PAST_THE_HOOK = 28  # the release of Docker
# A line of it that is meant for Kubernetes; how it is said, what helps.
_SETTINGS = (
    (
        _UNASKED,
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
        UNASKED,
    ),
    (
        r'^\s*mode\s*=\s*"cdi"',
        'mode = "cdi"',
        "sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",
    ),
)


def file(machine: Machine) -> str:
    """Where it is: a GPU operator's toolkit, where Docker is told of that, has one of its own."""
    own = _OPERATOR in (machine.read("/etc/docker/daemon.json") or "")
    return f"{_OPERATOR}/.config/nvidia-container-runtime/config.toml" if own else CONFIG


def text(machine: Machine) -> str:
    """Its configuration; empty where there is none."""
    return machine.read(file(machine)) or ""


def wrong(machine: Machine, way: str) -> Finding | None:
    """A setting with which containers get no GPU from this engine; where there is an image, a
    container says so itself.
    """
    config = text(machine)
    if way != "nvidia" or image_here(machine) is not None:
        return None
    for sign, seen, fix in _SETTINGS:
        # The runtime itself takes the hook of --gpus out then.
        ours = "mode" in seen and _is_default(machine)
        if re.search(sign, config, re.MULTILINE) and not (ours or _by_description(machine)):
            return fail(
                "toolkit",
                f"{seen} in {CONFIG}",
                "docker run --gpus, which we use, gives containers no GPU, or does not start them",
                fix,
            )
    return _elsewhere(machine, config) or _cgroups(machine)


def _is_default(machine: Machine) -> bool:
    """Whether Docker starts all containers by NVIDIA's runtime."""
    said = machine.read("/etc/docker/daemon.json") or ""
    return re.search(r'"default-runtime"\s*:\s*"nvidia"', said) is not None


def ldconfig(machine: Machine) -> str:
    """The program itself, where a system has a wrapper of it, as Ubuntu."""
    return "/sbin/ldconfig" + ".real" * machine.exists("/sbin/ldconfig.real")


def without_at(machine: Machine) -> tuple[str, str] | None:
    """It names an ldconfig that is not marked as the host's: what is seen, what helps.

    https://github.com/NVIDIA/nvidia-container-toolkit/releases/tag/v1.17.3
    """
    bare = re.search(r'(?m)^\s*ldconfig\s*=\s*"(/\S+)"', text(machine))
    if bare is None or version(machine) < _HOSTS_ALONE:
        return None
    own = ldconfig(machine) if bare.group(1).endswith("sbin/ldconfig") else bare.group(1)
    return (
        f'ldconfig = "{bare.group(1)}" in {file(machine)}, without an @ before it',
        (
            "sudo nvidia-ctk config --in-place --set"
            f" nvidia-container-cli.ldconfig=@{own} && sudo systemctl restart docker"
        ),
    )


def _cgroups(machine: Machine) -> Finding | None:
    """It is told to open the GPUs to nobody, where that is wanted; or not, where it must be."""
    if "rootless" in told(machine, "SecurityOptions") or _by_runc(machine):
        return None
    if kind.is_lxc(machine):
        return None if spares_cgroups(machine) else _unprivileged(machine)
    if not spares_cgroups(machine):
        return None
    return fail(
        "toolkit",
        f"no-cgroups = true in {CONFIG}, and this engine is not rootless",
        "containers may not open the GPUs: Failed to initialize NVML: Unknown Error",
        f"{NO_CGROUPS}=false && sudo systemctl restart docker",
    )


def _elsewhere(machine: Machine, config: str) -> Finding | None:
    """It names a folder of the driver, or an ldconfig, that is not there."""
    root = re.search(r'(?m)^\s*root\s*=\s*"(/\S+)"', config)
    place = root.group(1).rstrip("/") if root else ""
    known = machine.names(place.rpartition("/")[0] or "/")
    if place and place.rpartition("/")[2] not in known and not machine.exists(place):
        return fail(
            "toolkit",
            f'root = "{place}" in {CONFIG}, which is not there',
            "a GPU operator's driver was there: containers with GPUs do not start without it",
            "sudo nvidia-ctk config --in-place --set nvidia-container-cli.root=/",
        )
    bare = without_at(machine)
    if bare is not None:
        return fail(
            "toolkit", bare[0], "no container with GPUs starts: invalid config value", bare[1]
        )
    file = re.search(r'(?m)^\s*ldconfig\s*=\s*"@(/\S+)"', config)
    folder, _, name = (file.group(1) if file else "").rpartition("/")
    beside = {*machine.names(folder), *machine.names(f"/usr{folder}")} if folder else set()
    if not file or "ldconfig" not in beside or name in beside:
        return None
    return fail(
        "toolkit",
        f"{CONFIG} names {file.group(1)}, which is not there",
        "containers with GPUs do not start: ldcache error",
        f"sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@{folder}/ldconfig",
    )


def _by_runc(machine: Machine) -> bool:
    """Whether runc opens the GPUs to containers, or no-cgroups is not asked."""
    mode = re.search(r'^\s*mode\s*=\s*"([\w-]+)"', text(machine), re.MULTILINE)
    if mode is None or mode.group(1) == "auto":
        return version(machine) == _UNHEEDING
    return mode.group(1) in ("cdi", "csv", "jit-cdi")


def _unprivileged(machine: Machine) -> Finding | None:
    """An LXC container whose root is not the host's: its engine may open devices to nobody.

    https://github.com/NVIDIA/libnvidia-container/issues/154
    """
    root = (machine.read("/proc/self/uid_map") or "").split()[:2]
    if len(root) < 2 or root[1] == "0" or not text(machine):
        return None
    return fail(
        "toolkit",
        f"no-cgroups = true is missing in {CONFIG}, in an unprivileged LXC container",
        "containers with GPUs do not start: bpf_prog_query(BPF_CGROUP_DEVICE) failed",
        f"{NO_CGROUPS}=true && sudo systemctl restart docker",
    )


def spares_cgroups(machine: Machine) -> bool:
    """Whether it is told to open the GPUs to no container, as a rootless engine needs it."""
    return re.search(r"^\s*no-cgroups\s*=\s*true", text(machine), re.MULTILINE) is not None


def unasked(machine: Machine) -> bool:
    """Whether nobody may ask for GPUs by a variable, as this engine's --gpus does."""
    named = re.search(_UNASKED, text(machine), re.MULTILINE) is not None
    return named and not _by_description(machine)


def _by_description(machine: Machine) -> bool:
    """Whether this engine's --gpus may hand over what CDI describes, past the toolkit's hook."""
    release = docker.of(machine).split(".")[0]
    return not release.isdecimal() or int(release) >= _PAST_THE_HOOK


def version(machine: Machine) -> tuple[int, ...]:
    """Of the toolkit; (0,) where it does not say."""
    said = machine.run("nvidia-ctk", "--version").out
    if not said:  # there is none before 1.10; the library's version is the toolkit's from 1.6 on
        said = machine.run("nvidia-container-cli", "-V").out
    found = re.search(r"version:? ([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})", said)
    return tuple(int(part) for part in found.groups()) if found else (0,)
