"""The device for GPUs' memory, /dev/nvidia-uvm: nvidia-smi does without it, and CUDA does not."""

from __future__ import annotations

import re

from doctor import access, distribution, kind, log, uvm_loading, uvm_number
from doctor.finding import Finding, fail, warn
from host import limits, nvidia
from host.machine import Machine


def missing(machine: Machine, version: str) -> Finding | None:
    """It is not there, and no program will bring it."""
    if limits.in_container(machine.root) or kind.is_lxc(machine) or kind.is_apptainer(machine):
        return (
            access.narrowed(machine, version)
            or uvm_number.changed(machine, version)
            or _not_handed_over(machine, version)
        )
    unloaded = _manager(machine, version)
    if unloaded is None and uvm_loading.not_loaded(machine):
        unloaded = uvm_loading.unloaded(machine, version)
    if unloaded is not None:
        return unloaded
    if _without_libraries(machine):
        return fail(
            "driver",
            f"{version}; there is no /run/opengl-driver, where programs look for libcuda.so.1",
            "nvidia-smi does without it, and CUDA does not start (no NVIDIA driver found)",
            "hardware.graphics.enable = true;   # before NixOS 24.11 hardware.opengl.enable; then"
            " sudo nixos-rebuild switch",
        )
    if _made_no_device(machine):
        devices = machine.read("/proc/devices") or ""
        told = re.search(r"^\s*(\d+) nvidia-uvm$", devices, re.MULTILINE)
        number = told.group(1) if told else "N"
        return warn(
            "driver",
            f"{version}; /dev/nvidia-uvm is missing, though its module is loaded",
            "nvidia-smi does without it, and CUDA does not start (unknown error, 999)",
            "sudo nvidia-modprobe -u -c=0, at each boot; where there is none: sudo mknod -m 666"
            f" /dev/nvidia-uvm c {number} 0 and nvidia-uvm-tools c {number} 1",
        )
    return _without_contexts(machine, version)


def _without_contexts(machine: Machine, version: str) -> Finding | None:
    """It is there, and CUDA makes no context with it on this kernel."""
    if _hmm_fails(machine, version):
        return warn(
            "driver",
            f"{version}; nvidia_uvm with HMM, on a kernel of Enterprise Linux 9.6",
            "with these drivers CUDA does not start there (not initialized, 3)",
            'echo "options nvidia_uvm uvm_disable_hmm=1" | sudo tee /etc/modprobe.d/nvidia-uvm.conf'
            " && sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm; or a newer driver",
        )
    if not _passed_through(machine):
        return None
    return warn(
        "driver",
        f"{version}; iommu.passthrough on a Grace CPU, with a kernel before 6.11",
        "the IOMMU then has no table for processes' memory: CUDA makes no context",
        "take iommu.passthrough (or iommu=pt) off the kernel's command line and reboot; or a kernel"
        " from 6.11 on",
    )


def _passed_through(machine: Machine) -> bool:
    """Whether GPUs that share a Grace CPU's memory cannot be bound to a process's.

    https://github.com/NVIDIA/NV-Kernels/pull/22
    """
    line = (machine.read("/proc/cmdline") or "").split()
    passed = {"iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on", "iommu=pt"}
    coherent = any(re.search("GH200|GB200|GB300", gpu.name) for gpu in nvidia.ask(machine)[1])
    kernel = re.match(r"(\d{1,3})\.(\d{1,3})", machine.read("/proc/sys/kernel/osrelease") or "")
    old = kernel is not None and (int(kernel.group(1)), int(kernel.group(2))) < (6, 11)
    # A kernel that has the change from a later one says nothing.
    said = log.last(machine, "arm_smmu_write_ctx_desc|arm_smmu_sva_set_dev_pasid") is not None
    return coherent and old and said and bool(passed & {*line})


def not_yet(machine: Machine) -> str:
    """A word where the first program is to load it, which now and then does not come about."""
    other = limits.in_container(machine.root) or kind.is_lxc(machine) or kind.is_jetson(machine)
    if other or not uvm_loading.not_loaded(machine) or machine.exists("/dev/nvidia-uvm"):
        return ""
    if machine.has("podman") and not machine.has("docker"):
        return (
            "; nvidia_uvm is not loaded yet, which rootless Podman may not do: sudo nvidia-modprobe"
            " -u -c=0 at each boot"
        )
    return "; nvidia_uvm is not loaded yet: if CUDA says unknown error, sudo modprobe nvidia_uvm"


def _manager(machine: Machine, version: str) -> Finding | None:
    """The driver of a host that hands out virtual GPUs."""
    modules = machine.read("/proc/modules") or ""
    if re.search(r"^nvidia_vgpu_vfio ", modules, re.MULTILINE) is None:
        return None
    return warn(
        "driver",
        f"{version}, the manager of virtual GPUs (nvidia_vgpu_vfio)",
        "it hands parts of the GPUs to guests, and has no CUDA for this machine itself",
        "train in a guest; or install an ordinary driver in its place",
    )


def _hmm_fails(machine: Machine, version: str) -> bool:
    """Whether the kernel is 9.6's, and the driver a 570 or 575 that uses its HMM.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/901
    """
    kernel = machine.read("/proc/sys/kernel/osrelease") or ""
    hmm = machine.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    affected = re.match(r"57[05]\.", version) is not None
    return kernel.startswith("5.14.0-570.") and affected and (hmm or "").strip() == "N"


def _made_no_device(machine: Machine) -> bool:
    """Whether the module for GPUs' memory is loaded, and nobody has made its device. Where it is
    not loaded yet, the first program that starts CUDA does both.
    """
    names = machine.names("/dev")
    loaded = re.search(r"^nvidia_uvm ", machine.read("/proc/modules") or "", re.MULTILINE)
    return loaded is not None and "nvidiactl" in names and "nvidia-uvm" not in names


def _without_libraries(machine: Machine) -> bool:
    """Whether NixOS, which has libraries in no usual place, links to none of the driver's."""
    run = machine.names("/run")
    return "nixos" in distribution.names(machine) and bool(run) and "opengl-driver" not in run


def _not_handed_over(machine: Machine, version: str) -> Finding | None:
    """A container that was given GPUs, and not the device for their memory."""
    if not _lacks_device(machine):
        return None
    lxc = kind.is_lxc(machine) and not limits.in_container(machine.root)
    return fail(
        "driver",
        f"{version}; /dev/nvidia-uvm is not in this container{' (LXC)' * lxc}",
        "nvidia-smi does without it, and CUDA does not start (unknown error, 999)",
        "on the host: sudo nvidia-modprobe -u -c=0, in a unit that runs before containers start;"
        " hand over /dev/nvidia-uvm and nvidia-uvm-tools (devN, or lxc.mount.entry and"
        " lxc.cgroup2.devices.allow with their number in /proc/devices); start it anew"
        if lxc
        else "start the container with --gpus all, or hand over /dev/nvidia-uvm and"
        " /dev/nvidia-uvm-tools too; where the host lacks them: sudo nvidia-modprobe -u -c=0",
    )


def _lacks_device(machine: Machine) -> bool:
    """Whether there are devices of GPUs, and not that for their memory."""
    names = machine.names("/dev")
    return (
        bool(nvidia.devices(machine))
        and "nvidiactl" in names
        and not machine.exists("/dev/nvidia-uvm")
    )
