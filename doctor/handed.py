"""Whether a container sees the GPUs that Docker hands it, and if not, what its words mean."""

from __future__ import annotations

import re

from doctor import (
    cdi,
    complaints,
    configured,
    desktop,
    distribution,
    kind,
    located,
    log,
    selinux,
    toolkit,
)
from doctor.configured import CONFIG, NO_CGROUPS, UNASKED
from doctor.engine import answers, image_here, weighed
from doctor.finding import Finding, fail, ok, skip, warn
from host import docker, limits, nvidia
from host.machine import NO_ANSWER, Machine

# 1.18.0 is known for it.
_UNHEARD = (
    "this toolkit sets the device cgroup though it is told not to (no-cgroups)",
    "another version of nvidia-container-toolkit: the newest, or 1.17.8",
)


def examine(machine: Machine) -> Finding:
    """A container sees the GPUs, in the image that trains."""
    return weighed(machine, _examine(machine))


def _examine(machine: Machine) -> Finding:
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
    if answer.code == 0 and count >= len(gpus):
        job = count > len(gpus) and limits.in_job(machine.environ, machine.root)
        told = f"{len(gpus)} of {count}: this job's"  # make hands those over by name
        same = ok(name, told if job else f"{count}")
        return same if job or count == len(gpus) else _elsewhere(count, len(gpus))
    if answer.code == NO_ANSWER:
        why, fix = "the engine or the driver hangs", "docker info"
        return fail(name, "no answer in a minute", *(_crash(machine) or (why, fix)))
    why, fix = _crash(machine) or _why_unseen(machine, answer.said)
    rows = [
        row for row in answer.said.splitlines() if row.strip() and "docker run --help" not in row
    ]
    # What waits for the container complains after what could not start it.
    telling = [row for row in rows if re.search(r"nvidia-container-cli|requirement error", row)]
    last = re.sub(r"^.*stderr: ", "", (telling or rows or [""])[-1])  # after what started what
    seen = last[:160] if answer.code and rows else f"{count} of {len(gpus)}"
    return fail(name, seen, why, fix)


def _elsewhere(count: int, here: int) -> Finding:
    return warn(
        "GPUs in a container",
        f"{count}, and here {here}",
        "the engine is another machine's, or has more of this one than is seen here",
        "docker context ls; echo $DOCKER_HOST; ENGINE=local make train uses those that are here",
    )


def _crash(machine: Machine) -> tuple[str, str] | None:
    """Why, and what helps, where the toolkit itself crashes."""
    if log.last(machine, r"segfault .* in libnvidia-container") is None:
        return None
    return (
        "the toolkit crashes: segfault in libnvidia-container, says the kernel's log",
        "upgrade nvidia-container-toolkit and libnvidia-container*; 1.17.7 is known for it",
    )


_ANEW = (
    "remove nvidia-container-toolkit and install it again, which brings its"
    " nvidia-container-runtime-hook back; then sudo systemctl restart docker"
)


_UNAWARE = (
    "the toolkit is here and daemon.json names it: the engine was not started again since",
    "sudo systemctl restart docker   # without systemd, as in WSL: sudo service docker restart",
)


def _why_unseen(machine: Machine, said: str) -> tuple[str, str]:
    """Why a container does not see the GPUs that the host sees, and what helps."""
    if desktop.answers(machine):
        return desktop.WHY
    # https://github.com/canonical/docker-snap, NVIDIA Container Toolkit Compatibility
    twice = toolkit.is_snap(machine) and machine.has("nvidia-container-cli")
    of_host = twice and re.search("error mounting|CDI", said)
    set_up = _OF_A_SNAP if of_host else _set_up(machine, said)
    if set_up is not None:
        return set_up
    spared = configured.spares_cgroups(machine)
    for sign, why, fix in complaints.UNSEEN:
        if re.search(sign, said, re.IGNORECASE):
            own = re.sub(r"@/sbin/ldconfig(?![.])", f"@{configured.ldconfig(machine)}", fix)
            return _UNHEARD if f"{NO_CGROUPS}=true" in fix and spared else (why, own)
    if configured.unasked(machine):
        return f"{CONFIG} lets nobody ask for GPUs by a variable", UNASKED
    if "libnvidia-ml.so" in said:
        return located.found(machine)
    return _undriven(machine, said)


def _undriven(machine: Machine, said: str) -> tuple[str, str]:
    """Docker knows nothing that hands GPUs over, or something else went wrong."""
    why = "training in it would stop, or run on the CPU"
    unready = "could not select device driver" in said or "no known GPU vendor found" in said
    if unready and _lost_hook(machine):
        return why, _ANEW
    # Docker looks for what --gpus calls as it starts.
    named = '"nvidia"' in (machine.read("/etc/docker/daemon.json") or "")
    if unready and named and machine.has("nvidia-container-runtime"):
        return _UNAWARE
    # With the toolkit here, words that know no GPU are the engine's own trouble.
    ready = machine.has("nvidia-ctk") and not re.search("nvidia|gpu|cuda|cdi", said, re.IGNORECASE)
    if ready and said and not unready:
        return (
            "the engine starts no such container: its own words say why",
            (
                "sudo docker run --rm hello-world says whether it starts any; sudo journalctl -u"
                " docker -u containerd -n 30"
            ),
        )
    return why, toolkit.configure(machine)


_OF_A_SNAP = (
    (
        "Docker's snap takes the description of GPUs (CDI) that the host's own toolkit wrote, and"
        " has not its files (from 29.2 on)"
    ),
    (
        "sudo apt-get remove nvidia-container-toolkit nvidia-container-toolkit-base"
        " libnvidia-container-tools libnvidia-container1 && sudo reboot: the snap brings its own;"
        " or docker run --runtime nvidia --gpus all,driver=nvidia.runtime-hook"
    ),
)
_HARDENED = (
    "the kernel lets nobody read the filter of devices again (net.core.bpf_jit_harden = 2)",
    "sudo sysctl -w net.core.bpf_jit_harden=1, and write the same into /etc/sysctl.d",
)


def _hardened(machine: Machine) -> bool:
    """Whether eBPF programs of root are hardened too; only root may read what is set now."""
    folders = ("/etc/sysctl.d", "/usr/lib/sysctl.d")
    files = [f"{folder}/{name}" for folder in folders for name in machine.names(folder)]
    said = [machine.read(file) or "" for file in (*files, "/etc/sysctl.conf")]
    named = r"(?m)^\s*net\.core\.bpf_jit_harden\s*=\s*2"
    now = (machine.read("/proc/sys/net/core/bpf_jit_harden") or "").strip()
    return now == "2" or any(re.search(named, text) for text in said)


def _lost_hook(machine: Machine) -> bool:
    """Whether the toolkit is installed without what Docker's --gpus calls, as after an upgrade.

    https://github.com/NVIDIA/nvidia-container-toolkit/issues/34
    """
    there = "nvidia-container-toolkit" in machine.names("/usr/bin")  # beside it, or a link to it
    return there and not machine.has("nvidia-container-runtime-hook")


def _set_up(machine: Machine, said: str) -> tuple[str, str] | None:
    """What its words mean by how toolkit, engine and system are set up."""
    if "generate new device filter program" in said and _hardened(machine):
        return _HARDENED
    if "blocked by the operating system" in said and configured.spares_cgroups(machine):
        return (
            f"no-cgroups = true in {CONFIG}: the container may not open the devices",
            f"{NO_CGROUPS}=false && sudo systemctl restart docker",
        )
    if "insufficient permissions" in said.lower():
        return selinux.denied(machine) or _for_a_group(machine) or _refused(machine)
    bare = configured.without_at(machine) if "did not terminate successfully" in said else None
    wrapper = "ldconfig failed with error code: 127" in said
    if wrapper and configured.ldconfig(machine).endswith(".real"):
        bare = (
            "the toolkit runs Ubuntu's wrapper of ldconfig, which the container does not have",
            f"{configured.SET}.ldconfig=@/sbin/ldconfig.real && sudo systemctl restart docker",
        )
    bare = bare or (
        located.without_root(machine) if re.search("change root|process req", said) else None
    )
    if bare is not None:
        return bare
    by_hook = "invoking the NVIDIA Container Runtime Hook directly" in said
    if by_hook and not kind.is_jetson(machine):
        return (
            f'mode = "cdi" in {CONFIG}, which refuses the hook that --gpus calls',
            "sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",
        )
    return cdi.too_new(machine) if "CDI" in said else None


def _for_a_group(machine: Machine) -> tuple[str, str] | None:
    """The driver is told to make its devices for a group, in which the toolkit is not.

    https://github.com/NVIDIA/libnvidia-container/issues/37
    """
    said = machine.read("/proc/driver/nvidia/params") or ""
    mode = re.search(r"^DeviceFileMode: (\d{1,4})$", said, re.MULTILINE)
    if mode is None or int(mode.group(1)) & 0o006 == 0o006:
        return None
    folder = "/etc/modprobe.d"
    told = re.compile(r"(?m)^\s*options\s+nvidia\S*\s.*NVreg_DeviceFile")
    files = [f"{folder}/{name}" for name in machine.names(folder)]
    file = next((file for file in files if told.search(machine.read(file) or "")), None)
    first = f"take NVreg_DeviceFile… out of {file} where nobody needs it any more (VirtualGL:"
    first += f" vglserver_config undoes it), sudo {distribution.initramfs(machine)}, reboot; or "
    return (
        (
            "the driver is told to make /dev/nvidia* for a group alone, and the toolkit asks as"
            " somebody else"
        ),
        (first if file else "")
        + "sudo nvidia-ctk config --in-place --set nvidia-container-cli.user=root:THAT_GROUP",
    )


def _refused(machine: Machine) -> tuple[str, str] | None:
    """The toolkit asks the driver as another user than root, where SELinux keeps nothing away."""
    user = re.search(r'^\s*user\s*=\s*"([^"]+)"', configured.text(machine), re.MULTILINE)
    if (machine.read("/sys/fs/selinux/enforce") or "").strip() == "1":
        return None
    if user is None and "suse" not in distribution.names(machine):
        return None
    who = user.group(1) if user else "a user of its own"  # as SUSE's package has it
    return (
        f"the toolkit asks the driver as {who}, who may not open its devices ({CONFIG})",
        "sudo nvidia-ctk config --in-place --set nvidia-container-cli.user=root:video",
    )
