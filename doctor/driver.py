"""Whether the NVIDIA driver works."""

from __future__ import annotations

import re

from doctor import (
    access,
    away,
    distribution,
    dxg,
    held,
    kind,
    lost,
    members,
    mismatch,
    slices,
    undetected,
    ungiven,
    unloaded,
    uvm,
)
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, nvidia, pci
from host.machine import Answer, Machine

_CPU = "or train on the CPU: CPUS=1"
_XID = "sudo dmesg | grep -iE 'nvrm|xid'"

# What nvidia-smi says instead of rows, what it means, and what helps.
_COMPLAINTS = (
    (
        r"insufficient permissions",
        "this user may not open /dev/nvidia*: no program of yours sees a GPU",
        "{join}",
    ),
    (
        r"NvRmMem\w* failed with permission denied",
        "this user may not open a Jetson's /dev/nvmap and nvhost files: CUDA finds no GPU",
        "sudo usermod -aG video,render $USER   # and log in again; restart a service",
    ),
    (lost.SIGN, lost.WHY, lost.FIX),
    (
        r"version `?'?GLIBC_[\d.]+'? not found",
        "this container's C library is older than the host's, whose nvidia-smi it was given",
        "take an image of a newer system: one as old as the host's at the most",
    ),
    (
        r"libnvidia-ml",
        "nvidia-smi is here, and the loader does not find the library that it asks",
        "{loader}",
    ),
    (
        r"failed to initialize nvml: unknown error",
        (
            "the devices were not given to this container, or taken away (systemctl daemon-reload"
            " does that)"
        ),
        "{again}",
    ),
)


def driver(machine: Machine) -> Finding:
    """The driver answers; or the one reason why it does not."""
    answer, gpus = nvidia.ask(machine)
    if gpus:
        rows = _answers(machine, answer.code, gpus)
        if rows.status != "ok":
            return rows
        return dxg.hidden(machine) or access.misled(machine, rows.seen)
    for reason in (dxg.blocked, mismatch.found, _none_found, _complaint, _jetson, _unloaded):
        found = reason(machine, answer)
        if found is not None:
            return found
    other = _other_make(machine)
    if other is not None:
        return skip("driver", f"no NVIDIA GPU, but {other}, for which this torch is not built")
    sandboxed = ungiven.sandboxed(machine)
    if sandboxed is not None:
        return sandboxed
    # nvidia-smi without a card: an image's, or a virtual machine's that lost it.
    colab = "COLAB_RELEASE_TAG" in machine.environ
    more = ": Runtime, Change runtime type gives Colab one" * colab
    return skip("driver", f"no NVIDIA GPU on this machine{more}")


def _jetson(machine: Machine, _answer: Answer) -> Finding | None:
    """A Jetson before JetPack 6, which has no nvidia-smi."""
    if machine.has("nvidia-smi") or not kind.is_jetson(machine):
        return None
    unwell = fail if machine.environ.get("GPUS") else warn
    group = access.denied(machine, "/dev/nvmap")
    if group is not None:
        inside = limits.in_container(machine.root)
        return unwell(
            "driver",
            f"a Jetson, and this user may not open /dev/nvmap, which is group {group}'s",
            "CUDA does not start (NvRmMemInitNvmap: Permission denied)",
            f"start the container with --group-add {group}"
            if inside
            else "sudo usermod -aG video,render $USER   # and log in again",
        )
    return unwell(
        "driver",
        "a Jetson: its GPU is there, and no nvidia-smi, by which GPUs are counted",
        "it trains on the CPU",
        "JetPack 6 or newer (Orin and later); in containers --runtime nvidia, not --gpus",
    )


def _none_found(machine: Machine, answer: Answer) -> Finding | None:
    said = answer.said.lower()
    if "no devices were found" not in said or "unable to determine the device handle" in said:
        return None
    return undetected.none_found(machine, pci.cards(machine))


def _complaint(machine: Machine, answer: Answer) -> Finding | None:
    """What nvidia-smi says, where that is known."""
    for sign, why, fix in _COMPLAINTS:
        for row in answer.said.splitlines():
            if re.search(sign, row, re.IGNORECASE):
                if sign == lost.SIGN:
                    return lost.explained(machine, row)
                unit = slices.closed(machine) if fix == "{again}" else None
                if unit is not None and not limits.in_container(machine.root):
                    return slices.shut(machine, row, unit)
                mend = fix.format(
                    join=members.join(machine), loader=_loader(machine), again=_again(machine)
                )
                return fail("driver", row, why, mend)
    return None


def _unloaded(machine: Machine, _answer: Answer) -> Finding | None:
    """What bus and kernel say."""
    cards = pci.cards(machine)
    return unloaded.examine(machine, cards) if cards else away.gone(machine)


def _answers(machine: Machine, code: int, gpus: list[nvidia.Gpu]) -> Finding:
    """There are rows; and perhaps complaints beside them."""
    version = gpus[0].text("driver_version") or "of a version that it does not say"
    said = nvidia.complaints(machine)
    gone = [row for row in said if re.search(lost.SIGN, row, re.IGNORECASE)]
    # A GPU that is lost is complained of between the rows of the others, who may do without it.
    if gone and "CUDA_VISIBLE_DEVICES" not in machine.environ:
        return lost.explained(machine, gone[0])
    corrupted = [row for row in said if "inforom" in row.lower()]
    if corrupted:
        return warn(
            "driver",
            f"{version}; {corrupted[0]}",
            "the card cannot read what it keeps of itself; some such cards compute, others fail",
            f"look whether the row `kernels` below is right; have it replaced if Xids come: {_XID}",
        )
    if code and said and not gone:
        return warn(
            "driver",
            f"{version}; nvidia-smi ends with {code}: {said[-1][:120]}",
            "it lists GPUs, and has something to complain of",
            f"nvidia-smi -q; {_XID}",
        )
    return uvm.missing(machine, version) or ok("driver", f"{version}{uvm.not_yet(machine)}")


def _other_make(machine: Machine) -> str | None:
    """A GPU of another maker that computes."""
    if machine.exists("/dev/kfd"):
        return "AMD's (ROCm)"
    found = pci.of_maker(machine, pci.INTEL)
    return "Intel's (XPU)" if any(not address.endswith("00:02.0") for address in found) else None


def _again(machine: Machine) -> str:
    """How a container gets its devices back, and keeps them."""
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        return (
            "delete the pod; for good: on the node a newer toolkit with CDI, or kubelet without the"
            " static CPU manager (cpu-manager-policy=none), which rewrites the pod's cgroup"
        )
    if kind.is_lxc(machine):
        return (
            "on the host, in the LXC container's configuration: lxc.cgroup2.devices.allow: c 195:*"
            " rwm, and the same with the number of nvidia-uvm in /proc/devices (Proxmox: devN:);"
            " then start it anew"
        )
    return (
        "start it anew; for good, native.cgroupdriver=cgroupfs in the engine's daemon.json, or CDI"
    )


def _loader(machine: Machine) -> str:
    """How the driver's library is found."""
    box = held.boxed(machine)
    if box is not None:
        return box
    mounted = held.mounted(machine)
    if mounted is not None:
        return mounted
    library = "libnvidia-ml.so.1"
    for folder in (f"/usr/lib/x86_64-linux-gnu{more}" for more in ("", "/nvidia/current")):
        if library in machine.names(folder) and machine.read(f"{folder}/{library}") == "":
            return (
                f"{folder}/{library} is empty, as who hands libraries over file by file leaves it:"
                " hand over the whole folder; install nothing here"
            )
        operators = f"/run/nvidia/driver{folder}"
        if library in machine.names(operators):
            return (
                "the driver is the GPU operator's, install no other: train in a pod that asks for"
                f" nvidia.com/gpu; or echo {operators} | sudo tee /etc/ld.so.conf.d/nvidia.conf &&"
                " sudo ldconfig"
            )
    install = distribution.libraries(machine, nvidia.loaded(machine) or "")
    return f"sudo ldconfig; else install it: {install}"
