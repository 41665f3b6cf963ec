"""The NVIDIA Container Toolkit: whether containers get the GPUs."""

from __future__ import annotations

import re

from doctor import (
    batch,
    cdi,
    clusters,
    configured,
    desktop,
    distribution,
    kubelet,
    outdated,
    podman,
    rootless,
    selinux,
)
from doctor.engine import answers, image_here, told, weighed
from doctor.finding import Finding, fail, ok, skip, warn
from host import docker, nvidia
from host.machine import Machine

# The newest release without known holes through which a container gets at the host: CVE-2024-0132
# (mended in 1.16.2), CVE-2025-23359 (1.17.4), CVE-2025-23266 (1.17.8), CVE-2026-24260 (1.19.1).
_SAFE_TOOLKIT = (1, 19, 1)
_KNOWS_DXGDMAL = (1, 14, 4)
_PLAIN = ((1, 17, 0), (1, 17, 1))  # the same, 797: images that ask for no CUDA by a variable
# https://github.com/NVIDIA/nvidia-container-toolkit/issues/1517
_OLD_SANDBOX = (
    "; with driver 565: NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=disable-nvsandboxutils in"
    " /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
)
_KNOWS_CDI = 25  # the first release of Docker
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
NO_SNAP = (
    "sudo snap remove docker; install Docker Engine from docker.com and nvidia-container-toolkit;"
    f" {_CONFIGURE}"
)
_CONFIGURE_ROOTLESS = (
    "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json"
    " && systemctl --user restart docker;"
    f" {configured.NO_CGROUPS}=true"
)


def toolkit(machine: Machine) -> Finding:
    """Docker can hand GPUs to containers."""
    return weighed(machine, _toolkit(machine))


def _toolkit(machine: Machine) -> Finding:
    _, gpus = nvidia.ask(machine)
    if not gpus:
        return skip("toolkit", "no GPU")
    if not answers(machine):
        # Podman takes descriptions as they are, without a toolkit that looks.
        with_podman = machine.has("podman")
        outside = machine.environ.get("ENGINE") == "local" or "SLURM_JOB_ID" in machine.environ
        looks = (
            *(() if outside else (podman.unread,)),
            *(cdi.denied, outdated.stale, _described, _denied),
            *(() if outside else (rootless.barred, podman.undescribed)),
        )
        wrong = next((found for look in looks if with_podman and (found := look(machine))), None)
        unknown = cdi.unlisted(machine)
        pods = (
            kubelet.fallen(machine)
            or clusters.pods(machine)
            or batch.enroot(machine)
            or batch.apptainer(machine)
        )
        return _uninstalled(machine) or wrong or unknown or pods or skip("toolkit", "no engine")
    way = docker.handover(machine)
    confined = "selinux" in told(machine, "SecurityOptions")  # what it starts
    if way is None or (desktop.answers(machine) and image_here(machine) is None):
        return _no_toolkit(machine)
    return (
        _uninstalled(machine)
        or desktop.old(machine)
        or (outdated.stale(machine) if way == "cdi" else None)
        or cdi.wrong(machine, way)
        or configured.wrong(machine, way)
        or (_denied(machine) if confined and image_here(machine) is None else None)  # else: tried
        or _with_pods(machine, _version(machine, way))
    )


def _with_pods(machine: Machine, version: Finding) -> Finding:
    """The same, unless this is a node of Kubernetes beside, which is to start pods and cannot."""
    node = version.status == "ok" and machine.exists("/etc/kubernetes/kubelet.conf")
    return (kubelet.fallen(machine) if node else None) or version


def _described(machine: Machine) -> Finding | None:
    """What is wrong with a description that an engine takes as it is."""
    return cdi.wrong(machine, "cdi")


def _denied(machine: Machine) -> Finding | None:
    """SELinux keeps the GPUs from containers, of whatever engine."""
    why, fix = selinux.denied(machine) or ("", "")
    if why:
        return fail("toolkit", "containers may not use the GPUs", why, fix)
    why, fix = selinux.unshared(machine) or ("", "")
    return warn("toolkit", "a container was refused files", why, fix) if why else None


def _version(machine: Machine, way: str) -> Finding:
    """Its version, which is to be new enough."""
    numbers = configured.version(machine)
    word = {"nvidia": "runtime", "cdi": "CDI"}[way]
    if numbers == (0,):
        return ok("toolkit", word)
    version = ".".join(map(str, numbers))
    if numbers == batch.TRIPS and machine.has("enroot"):
        return batch.tripped(machine)
    newer = distribution.of(machine, distribution.TOOLKIT, distribution.APT_NEWER_TOOLKIT)
    if numbers in _PLAIN:  # ours does start
        note = "a newer one starts all images (unsupported IMEX channel value: all)"
        return ok("toolkit", f"{version} ({word}); {note}")
    if numbers < _KNOWS_DXGDMAL and desktop.wants_dxgdmal(machine):
        return fail(
            "toolkit",
            f"{version} ({word}), which does not hand {desktop.DXGDMAL} to containers",
            "Windows' driver from 555 on needs it: CUDA ends there with error 500",
            newer,
        )
    # It matters where images of others run; nothing that trains fails by it.
    hole = "; before 1.19.1 an image can get at the host: CVE-2025-23266, CVE-2026-24260"
    return ok("toolkit", f"{version} ({word}){hole * (numbers < _SAFE_TOOLKIT)}")


def _uninstalled(machine: Machine) -> Finding | None:
    """A runtime that Docker is told of, and that is not there."""
    said = machine.read("/etc/docker/daemon.json") or ""
    told = re.search(r'"path"\s*:\s*"((?:/[\w./-]+/)?nvidia-container-runtime)"', said)
    if told is None or machine.has("nvidia-container-runtime"):
        return None
    programs = machine.names("/usr/bin")  # Docker's own PATH may be another than ours
    if machine.exists(told.group(1)) or not programs or "nvidia-container-runtime" in programs:
        return None
    return fail(
        "toolkit",
        f"/etc/docker/daemon.json names {told.group(1)}, which is not there",
        "no container with GPUs starts: no such file",
        configure(machine),
    )


def _no_toolkit(machine: Machine) -> Finding:
    if desktop.answers(machine):
        why, fix = desktop.WHY
        return fail("toolkit", "Docker Desktop has no GPUs here", why, fix)
    if is_snap(machine):
        return fail(
            "toolkit",
            "Docker is a snap here, which does not see the NVIDIA Container Toolkit",
            "no container with GPUs starts",
            NO_SNAP,
        )
    described, version = cdi.of_gpus(machine), docker.of(machine).split(".")[0]
    if described is not None and version.isdecimal() and int(version) < _KNOWS_CDI:
        newer = f"a Docker of {_KNOWS_CDI} or newer"
        if "nixos" in distribution.names(machine):
            newer = f"virtualisation.docker.package = pkgs.docker_{_KNOWS_CDI};   # or newer"
        return fail(
            "toolkit",
            f"the GPUs are described in {described} (CDI), which Docker {version} does not know",
            "containers train on the CPU, without an error",
            f"{newer}; or nvidia-ctk runtime configure --runtime=docker",
        )
    if "failed" in machine.run("systemctl", "is-active", "nvidia-cdi-refresh.service").out:
        return fail(
            "toolkit",
            "nvidia-cdi-refresh.service has failed: the GPUs are described nowhere (CDI)",
            "no container with GPUs starts: unresolvable CDI devices",
            "sudo systemctl restart nvidia-cdi-refresh; why: journalctl -u nvidia-cdi-refresh"
            + _OLD_SANDBOX * (nvidia.loaded(machine) or "").startswith("565."),
        )
    said = machine.read("/etc/docker/daemon.json") or ""
    named = re.search(r'"runtimes"\s*:\s*\{[^}]*"nvidia"\s*:', said)
    rootless = "rootless" in told(machine, "SecurityOptions")  # and has a file of its own
    if named and not rootless and machine.has("nvidia-container-runtime"):
        return fail(
            "toolkit",
            "daemon.json names the NVIDIA runtime, and Docker has not read that yet",
            "containers train on the CPU, without an error",
            "sudo systemctl restart docker",
        )
    return _listed_twice(machine) or fail(
        "toolkit",
        "Docker has no NVIDIA Container Toolkit",
        "containers train on the CPU, without an error",
        configure(machine),
    )


_ROW = re.compile(
    r"(?m)^deb +(?:\[([^\]]*)\] +)?(\S*nvidia\.github\.io/libnvidia-container/\S* +\S+)"
)


def _listed_twice(machine: Machine) -> Finding | None:
    """Two lists of apt's name the toolkit's source, with unlike keys of their own.

    https://github.com/NVIDIA/nvidia-container-toolkit/issues/170
    """
    folder = "/etc/apt/sources.list.d"
    keys: dict[str, dict[str, str]] = {}  # by source, and by file
    for name in machine.names(folder):
        said = machine.read(f"{folder}/{name}") or "" if name.endswith(".list") else ""
        for key, source in re.findall(_ROW, said):
            signed = re.search(r"signed-by=(\S+)", key)
            keys.setdefault(source, {})[f"{folder}/{name}"] = signed.group(1) if signed else ""
    unlike = next((of for of in keys.values() if len({*of.values()}) > 1), None)
    if unlike is None:
        return None
    files = sorted(unlike, key=lambda file: unlike[file])
    return fail(
        "toolkit",
        f"Docker has no toolkit, and {files[0]} and {files[-1]} have other keys for one source",
        "apt reads no source at all: Conflicting values set for option Signed-By",
        f"sudo rm {files[0]} && sudo apt-get update; then {configure(machine)}",
    )


def configure(machine: Machine) -> str:
    """How the toolkit is installed here, and Docker told of it."""
    if "truenas" in distribution.names(machine):  # where apt is shut
        return distribution.install(machine)
    if "nixos" in distribution.names(machine):
        return "hardware.nvidia-container-toolkit.enable = true;   # and sudo nixos-rebuild switch"
    install = distribution.of(machine, distribution.TOOLKIT, distribution.APT_TOOLKIT)
    rootless = "rootless" in told(machine, "SecurityOptions")
    fix = f"{install}; {_CONFIGURE_ROOTLESS if rootless else _CONFIGURE}"
    if "not been booted with systemd" in machine.run("systemctl", "is-active", "docker").err:
        fix = fix.replace("sudo systemctl restart docker", "sudo service docker restart")
    if machine.has("nvidia-ctk") or "arch" in distribution.names(machine):
        return fix
    return (
        f"{fix}   # where the package is not found, add NVIDIA's repository first: docs.nvidia.com,"
        " Installing the NVIDIA Container Toolkit"
    )


def is_snap(machine: Machine) -> bool:
    """Whether the engine is Docker's snap, which sees few files of the host."""
    return "/snap/" in told(machine, "DockerRootDir")
