"""What else than Docker starts containers on machines of a cluster: Kubernetes' nodes, enroot."""

from __future__ import annotations

import re

from doctor import configured, distribution, kind
from doctor.finding import Finding, fail, warn
from host import limits
from host.machine import Machine

_LEFT = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
TRIPS = (1, 17, 7)
"""A release of the toolkit: https://github.com/NVIDIA/nvidia-container-toolkit/issues/1093"""
_NAMESPACES = (
    ("user.max_user_namespaces", "0", "65536"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
)
# Distributions of Kubernetes with a containerd of their own: its configuration, and what helps.
_OWN = (
    (
        "k3s",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        (
            "{install}; sudo systemctl restart k3s (or k3s-agent), which finds it; pods want"
            " runtimeClassName: nvidia"
        ),
    ),
    (
        "RKE2",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        (
            "{install}; sudo systemctl restart rke2-server (or rke2-agent), which finds it; pods"
            " want runtimeClassName: nvidia"
        ),
    ),
    (
        "MicroK8s",
        "/var/snap/microk8s/current/args/containerd-template.toml",
        "sudo microk8s enable nvidia",
    ),
    (
        "k0s",
        "/etc/k0s/containerd.toml",
        (
            "{install}; sudo nvidia-ctk runtime configure --runtime=containerd"
            " --config=/etc/k0s/containerd.d/nvidia.toml; sudo systemctl restart k0scontroller (or"
            " k0sworker); pods want runtimeClassName: nvidia"
        ),
    ),
)


def pods(machine: Machine) -> Finding | None:
    """A node of Kubernetes whose containers get no GPU."""
    if limits.in_container(machine.root):
        return None
    for name, path, fix in _OWN:
        said = machine.read(path)
        stem = path[: -len(".toml")]
        for more in (f"{path}.d", f"{stem}-v3.toml.d", f"{stem}.d"):
            said = (said or "") + "".join(
                machine.read(f"{more}/{n}") or "" for n in machine.names(more)
            )
        left = _LEFT in (said or "") and not machine.exists("/run/nvidia/validations")
        if left and name != "MicroK8s" and "nvidia-container-runtime" in machine.names("/usr/bin"):
            return warn(
                "toolkit",
                f"{name} starts pods by {_LEFT}, which a GPU operator left, and not by /usr/bin's",
                "pods with GPUs do not start",
                f"sudo {name.lower()}-killall.sh; sudo rm -r /usr/local/nvidia; start {name} again,"
                " which then finds the other",
            )
        # MicroK8s' template names a program for it from the first, which may not be there.
        bare = name == "MicroK8s" and not machine.has("nvidia-container-runtime")
        bare = bare and not re.search(r'BinaryName\s*=\s*"/[^"]*nvidia', said or "")
        if said and ("nvidia" not in said or bare):
            install = distribution.of(machine, distribution.TOOLKIT, distribution.APT_TOOLKIT)
            return warn(
                "toolkit",
                f"{name}'s containerd knows no runtime of NVIDIA's ({path.rpartition('/')[2]})",
                "pods get no GPU, and the node offers none",
                fix.format(install=install),
            )
    return _without_runtime(machine) or _by_crio(machine)


def _by_crio(machine: Machine) -> Finding | None:
    """A node of Kubernetes whose CRI-O knows neither NVIDIA's runtime nor a description of GPUs."""
    folder = "/etc/crio/crio.conf.d"
    files = [f"{folder}/{name}" for name in machine.names(folder)]
    said = "".join(machine.read(file) or "" for file in ("/etc/crio/crio.conf", *files))
    hooks = [f"/{place}/containers/oci/hooks.d" for place in ("etc", "usr/share", "run")]
    places = (*hooks, "/etc/cdi", "/var/run/cdi", "/run/cdi")
    other = any("nvidia" in name for place in places for name in machine.names(place))
    if not said or "nvidia" in said or other or not machine.has("kubelet"):
        return None
    return warn(
        "toolkit",
        "CRI-O knows no runtime of NVIDIA's, and the GPUs are described nowhere (CDI)",
        "pods get no GPU, and the node offers none",
        "sudo nvidia-ctk runtime configure --runtime=crio --set-as-default && sudo systemctl"
        " restart crio; then start the device plugin's pod anew",
    )


def _without_runtime(machine: Machine) -> Finding | None:
    """A node of Kubernetes whose containerd starts all pods by runc."""
    folder = "/etc/containerd"
    said = machine.read(f"{folder}/config.toml") or ""
    for more in (f"{folder}/config.d", f"{folder}/conf.d"):
        said += "".join(machine.read(f"{more}/{name}") or "" for name in machine.names(more))
    said = re.sub(r"(?m)^\s*#.*", "", said).replace("'", '"')  # as containerd 2 writes it
    program = re.search(r'BinaryName\s*=\s*"(/[^"]*nvidia-container-runtime[^"]*)"', said)
    beside = machine.names(program.group(1).rpartition("/")[0]) if program else []
    gone = bool(beside) and program and program.group(1).rpartition("/")[2] not in beside
    if program and gone and 'default_runtime_name = "nvidia"' in said:
        return fail(
            "toolkit",
            f"containerd starts all pods by {program.group(1)}, which is not there",
            "no pod starts on this node: the GPU operator was removed, and its runtime left",
            'take nvidia out of /etc/containerd/config.toml (default_runtime_name = "runc"), or'
            " install the operator again; then sudo systemctl restart containerd",
        )
    places = ("/etc/kubernetes", "/var/lib/kubelet")
    node = machine.has("kubelet") or any(map(machine.exists, places))
    default = re.search(r'default_runtime_name = "(\w*)"', said)
    # Docker's packages bring a file that switches Kubernetes' part of it off.
    off = re.search(r'disabled_plugins = \[[^]]*cri"', said) is not None
    for_pods = not off and re.search(r"containerd\.(?:grpc\.v1\.cri|cri\.v1)", said) is not None
    runc = default.group(1) == "runc" if default else for_pods
    if "nvidia" in said or not runc or not node:
        return None
    return warn(
        "toolkit",
        "containerd starts pods by runc, and knows no runtime of NVIDIA's",
        "pods get no GPU, and the node offers none",
        "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default && sudo systemctl"
        " restart containerd; then start the device plugin's pod anew",
    )


def enroot(machine: Machine) -> Finding | None:
    """Containers of enroot get GPUs by a program of the toolkit's."""
    if "98-nvidia.sh" not in machine.names("/etc/enroot/hooks.d") and not machine.has("enroot"):
        return None
    if machine.has("nvidia-container-cli"):
        return _enroot_trips(machine)
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
    profiles = machine.names("/etc/apparmor.d")
    known = not profiles or any(program in name for name in profiles)
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
