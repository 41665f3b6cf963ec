"""The NVIDIA Container Toolkit: whether containers get the GPUs."""

from __future__ import annotations

import re

from doctor import cdi, distribution, log, wsl
from doctor.engine import answers, image_here, told
from doctor.finding import Finding, fail, ok, skip, warn
from host import docker, nvidia
from host.machine import NO_ANSWER, Machine

# First release without known holes through which a container gets at the host: CVE-2024-0132
# (mended in 1.16.2), CVE-2025-23359 (1.17.4), CVE-2025-23266 (1.17.8), CVE-2026-24260 (1.19.1).
_SAFE_TOOLKIT = (1, 19, 1)
# 1.18.0 is known for it.
_UNHEARD = (
    "this toolkit sets the device cgroup though it is told not to (no-cgroups)",
    "another version of nvidia-container-toolkit: the newest, or 1.17.8",
)
_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_KNOWS_CDI = 25  # the first release of Docker
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
_NO_CGROUPS = "sudo nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups"
_NO_SNAP = "sudo snap remove docker; install Docker Engine from docker.com"
_DESKTOP = (
    "Docker Desktop runs its engine in a machine without GPUs: only on Windows it hands them over",
    "install Docker Engine beside it, and docker context use default; or ENGINE=local",
)
_CONFIGURE_ROOTLESS = (
    "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json"
    " && systemctl --user restart docker;"
    f" {_NO_CGROUPS}=true"
)
# What a container says that does not see the GPUs, what it means, and what helps.
_UNSEEN = (
    (
        r"file creation failed: .*file exists",
        "the image itself holds files of the driver, where the toolkit puts the host's",
        (
            "make the image anew without them: RUN rm -f /usr/lib/*-linux-gnu/libcuda.so.1"
            " /usr/lib/*-linux-gnu/libnvidia-ml.so.1; build with runc, not with the nvidia runtime,"
            " and not by docker commit"
        ),
    ),
    ("mismatch", "the driver was upgraded under the engine", "sudo reboot"),
    (
        "unresolvable CDI|failed to stat CDI|CDI device injection failed",
        "the CDI description is missing, or older than the driver",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        r"bpf_prog_query|failed to add device rules|cgroups?/devices.*permission denied",
        "the toolkit may not set the device cgroup: a rootless engine, or one inside LXC",
        f"{_NO_CGROUPS}=true; restart the engine",
    ),
    (
        "cgroup subsystem devices not found",
        "the toolkit is older than the machine's cgroups (v2), or the engine has none",
        (
            "upgrade nvidia-container-toolkit; where it stays so: "
            f"{_NO_CGROUPS}=true; restart the engine"
        ),
    ),
    (
        r"mode as .?csv|invoking the NVIDIA Container Runtime Hook directly",
        "on a Jetson the runtime hands the GPU over, and --gpus does not",
        (
            "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default && sudo systemctl"
            " restart docker; or ENGINE=local"
        ),
    ),
    (
        r"ldconfig\.real: no such file",
        "the toolkit is set to Ubuntu's ldconfig, which this system does not have",
        "sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig",
    ),
    (
        r"driver rpc error: timed out",
        "the driver takes longer to start than the toolkit waits: nothing keeps it loaded",
        "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1",
    ),
    (
        r"unsatisfied condition: cuda",
        "the image wants a newer driver than this one (NVIDIA_REQUIRE_CUDA)",
        "install a newer driver, or build the image for this one: CUDA=cuda12",
    ),
    (
        "Insufficient Permissions",
        "SELinux keeps the devices from containers",
        "sudo setsebool -P container_use_devices 1",
    ),
    (
        "Failed to initialize NVML",
        "the container may not open the devices (cgroup)",
        f"{_NO_CGROUPS}=false && sudo systemctl restart docker",
    ),
)


def toolkit(machine: Machine) -> Finding:
    """Docker can hand GPUs to containers."""
    _, gpus = nvidia.ask(machine)
    if not gpus:
        return skip("toolkit", "no GPU")
    if not answers(machine):
        # Podman takes descriptions as they are, without a toolkit that looks.
        stale = cdi.stale(machine) if machine.has("podman") else None
        return _uninstalled(machine) or stale or skip("toolkit", "no engine")
    way = docker.handover(machine)
    if way is None:
        return _no_toolkit(machine)
    return _uninstalled(machine) or cdi.wrong(machine, way) or _known_holes(machine, way)


def _known_holes(machine: Machine, way: str) -> Finding:
    """Its version, which is to be new enough."""
    said = machine.run("nvidia-ctk", "--version").out
    found = re.search(r"version ([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})", said)
    word = {"nvidia": "runtime", "cdi": "CDI"}[way]
    if found is None:
        return ok("toolkit", word)
    version = ".".join(found.groups())
    if tuple(int(part) for part in found.groups()) < _SAFE_TOOLKIT:
        return warn(
            "toolkit",
            f"{version} ({word})",
            "before 1.19.1 a container can get at the host: CVE-2025-23266, CVE-2026-24260",
            distribution.of(machine, distribution.TOOLKIT, distribution.APT_NEWER_TOOLKIT),
        )
    return ok("toolkit", f"{version} ({word})")


def _uninstalled(machine: Machine) -> Finding | None:
    """A runtime that Docker is told of, and that is not there."""
    said = machine.read("/etc/docker/daemon.json") or ""
    told = re.search(r'"path"\s*:\s*"((?:/[\w./-]+/)?nvidia-container-runtime)"', said)
    if told is None or machine.has("nvidia-container-runtime"):
        return None
    if machine.exists(told.group(1)) or not machine.names("/usr/bin"):
        return None
    return fail(
        "toolkit",
        f"/etc/docker/daemon.json names {told.group(1)}, which is not there",
        "no container with GPUs starts: no such file",
        _configure(machine),
    )


def _no_toolkit(machine: Machine) -> Finding:
    if _is_desktop(machine):
        why, fix = _DESKTOP
        return fail("toolkit", "Docker Desktop has no GPUs here", why, fix)
    described, version = cdi.of_gpus(machine), docker.answers(machine).split(".")[0]
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
    return fail(
        "toolkit",
        "Docker has no NVIDIA Container Toolkit",
        "containers train on the CPU, without an error",
        _configure(machine),
    )


def _configure(machine: Machine) -> str:
    """How the toolkit is installed here, and Docker told of it."""
    if "nixos" in distribution.names(machine):
        return "hardware.nvidia-container-toolkit.enable = true;   # and sudo nixos-rebuild switch"
    install = distribution.of(machine, distribution.TOOLKIT, distribution.APT_TOOLKIT)
    rootless = "rootless" in told(machine, "SecurityOptions")
    return f"{install}; {_CONFIGURE_ROOTLESS if rootless else _CONFIGURE}"


def in_container(machine: Machine) -> Finding:
    """A container sees the GPUs, in the image that trains."""
    name = "GPUs in a container"
    _, gpus = nvidia.ask(machine)
    if not gpus or not answers(machine):
        return skip(name, "no GPU" if not gpus else "no engine")
    way = docker.handover(machine)
    if way is None:
        return skip(name, "no toolkit")
    image = image_here(machine)
    if image is None:
        return skip(name, "no image yet: make image")
    given = ["--gpus", "all"] if way == "nvidia" else ["--device", "nvidia.com/gpu=all"]
    words = ["docker", "run", "--rm", "--network=none", *given, "--entrypoint", "nvidia-smi"]
    answer = machine.run(*words, image, "-L", seconds=60)
    count = sum(row.startswith("GPU ") for row in answer.out.splitlines())
    if answer.code == 0 and count == len(gpus):
        return ok(name, f"{count}")
    if answer.code == NO_ANSWER:
        why, fix = "the engine or the driver hangs", "docker info"
        return fail(name, "no answer in a minute", *(_crash(machine) or (why, fix)))
    why, fix = _crash(machine) or _why_unseen(machine, answer.said)
    rows = [row for row in answer.said.splitlines() if row.strip()]
    # What waits for the container complains after what could not start it.
    telling = [row for row in rows if re.search(r"nvidia-container-cli|requirement error", row)]
    seen = (telling or rows)[-1][:160] if answer.code and rows else f"{count} of {len(gpus)}"
    return fail(name, seen, why, fix)


def _crash(machine: Machine) -> tuple[str, str] | None:
    """Why, and what helps, where the toolkit itself crashes."""
    if log.last(machine, r"segfault .* in libnvidia-container") is None:
        return None
    return (
        "the toolkit crashes: segfault in libnvidia-container, says the kernel's log",
        "upgrade nvidia-container-toolkit and libnvidia-container*; 1.17.7 is known for it",
    )


def _why_unseen(machine: Machine, said: str) -> tuple[str, str]:
    """Why a container does not see the GPUs that the host sees, and what helps."""
    if "could not select device driver" in said and _is_desktop(machine):
        return _DESKTOP
    config = machine.read(_CONFIG) or ""
    spared = re.search(r"^\s*no-cgroups\s*=\s*true", config, re.MULTILINE)
    for sign, why, fix in _UNSEEN:
        if re.search(sign, said, re.IGNORECASE):
            return _UNHEARD if f"{_NO_CGROUPS}=true" in fix and spared else (why, fix)
    if "libnvidia-ml.so" in said and _is_ldconfig_inside(machine):
        return (
            "the toolkit runs the container's ldconfig: its path in config.toml has no @ in front",
            "sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig",
        )
    if "libnvidia-ml.so" in said:
        if "snap" in told(machine, "DockerRootDir"):
            return (
                "Docker is a snap here, which does not see the driver's libraries",
                f"{_NO_SNAP}; {_configure(machine)}",
            )
        return "the toolkit does not find the driver's libraries on the host", "sudo ldconfig"
    return "training in it would stop, or run on the CPU", _configure(machine)


def _is_ldconfig_inside(machine: Machine) -> bool:
    """Whether the toolkit is set to a path of ldconfig in the container."""
    said = machine.read(_CONFIG) or ""
    return re.search(r'^\s*ldconfig\s*=\s*"/', said, re.MULTILINE) is not None


def _is_desktop(machine: Machine) -> bool:
    """Whether the engine is Docker Desktop's on Linux, whose machine has no GPUs."""
    return not wsl.is_windows(machine) and "Docker Desktop" in told(machine, "OperatingSystem")
