"""Whether pods of Kubernetes get the GPUs of their node."""

from __future__ import annotations

import re

from doctor import cdi, distribution
from doctor.finding import Finding, fail, warn
from host import limits
from host.machine import Machine

_LEFT = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
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


# In names of pods that may well want one.
_COMPUTES = re.compile(
    "nvidia|gpu|cuda|train|torch|jupyter|notebook|llm|llama|triton|infer|whisper|diffusion|ray"
)
_CRIO = ("/run/crio/crio.sock", "/var/run/crio/crio.sock")


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
            again = (
                "sudo k0s stop; sudo rm -r /usr/local/nvidia; sudo nvidia-ctk runtime configure"
                " --runtime=containerd --config=/etc/k0s/containerd.d/nvidia.toml; sudo k0s start"
                if name == "k0s"
                else f"sudo {name.lower()}-killall.sh; sudo rm -r /usr/local/nvidia; start {name}"
                " again, which then finds the other"
            )
            seen = (
                f"{name} starts pods by {_LEFT}, which a GPU operator left, and not by /usr/bin's"
            )
            return warn("toolkit", seen, "pods with GPUs do not start", again)
        # MicroK8s' template names a program for it from the first, which may not be there.
        if _by_cdi(machine, said or ""):
            continue
        bare = name == "MicroK8s" and not machine.has("nvidia-container-runtime")
        bare = bare and not machine.exists(_LEFT)
        bare = bare and not re.search(r'BinaryName\s*=\s*"/[^"]*nvidia', said or "")
        # Where nothing on the node is about GPUs, its pods are for other things.
        there = machine.names("/var/log/pods")
        unasked = there and not any(map(_COMPUTES.search, there))
        if unasked and not machine.has("nvidia-ctk"):
            continue
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
    places = (*hooks, *cdi.FOLDERS)
    other = any("nvidia" in name for place in places for name in machine.names(place))
    idle = machine.exists("/run/containerd/containerd.sock") and not any(map(machine.exists, _CRIO))
    if idle or not said or "nvidia" in said or other or not machine.has("kubelet"):
        return None
    return warn(
        "toolkit",
        "CRI-O knows no runtime of NVIDIA's, and the GPUs are described nowhere (CDI)",
        "pods get no GPU, and the node offers none",
        "sudo nvidia-ctk runtime configure --runtime=crio --set-as-default && sudo systemctl"
        " restart crio; then start the device plugin's pod anew",
    )


def _by_cdi(machine: Machine, said: str) -> bool:
    """Whether containerd takes GPUs from a description, which is there."""
    # Its release 2 does where nothing is said of it.
    told = re.search(r"enable_cdi\s*=\s*(true|false)", said)
    newer = re.search(r"(?m)^version = 3\b", said)
    described = (name for place in cdi.FOLDERS for name in machine.names(place))
    claimed = machine.exists("/var/lib/kubelet/plugins/gpu.nvidia.com")  # described for each pod
    takes = newer is not None if told is None else told.group(1) == "true"
    return takes and (claimed or any("nvidia" in name for name in described))


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
    runc = not off and default.group(1) == "runc" if default else for_pods
    # Google's plugin mounts devices and libraries itself; CRI-O has its own files.
    other = _by_cdi(machine, said) or any(
        map(
            machine.exists,
            ("/home/kubernetes/bin/nvidia", *_CRIO),
        )
    )
    if "nvidia" in said or not runc or not node or other:
        return None
    return warn(
        "toolkit",
        "containerd starts pods by runc, and knows no runtime of NVIDIA's",
        "pods get no GPU, and the node offers none",
        "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default && sudo systemctl"
        " restart containerd; then start the device plugin's pod anew",
    )
