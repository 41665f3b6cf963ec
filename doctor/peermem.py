"""The module by which ports of InfiniBand read GPUs' memory (GPUDirect RDMA)."""

from __future__ import annotations

import re

from doctor import log
from host import nvidia
from host.machine import Machine


def refused(machine: Machine) -> tuple[str, str, str] | None:
    """Amazon's module says by whom it reads GPUs' memory (device/p2p), of those that let it.

    https://github.com/aws/aws-ofi-nccl/issues/803
    """
    if log.last(machine, "symbol_get of non-GPLONLY symbol nvidia_p2p") and _is_closed(machine):
        return (
            "; this kernel gives NVIDIA's symbols for GPUs' memory to no such module (kernel log)",
            "NCCL over several machines goes through the host's memory: GPUDirect RDMA is off",
            "install the driver's open kernel modules and reboot; or boot the kernel before",
        )
    folder = "/sys/class/infiniband"
    said = {name: machine.read(f"{folder}/{name}/device/p2p") for name in machine.names(folder)}
    none = [name for name, word in said.items() if word is not None and not word.strip()]
    cards = nvidia.ask(machine)[1]
    able = bool(cards) and all(re.search(r"\b[ABH][123]00\b", card.name) for card in cards)
    if not none or not able or not _is_closed(machine):
        return None
    return (
        f"; {none[0]} does not read GPUs' memory (its file p2p names nobody)",
        "NCCL over several machines fails or goes the long way: the closed module refuses it",
        "install the driver's open kernel modules and reboot; and a newer EFA installer",
    )


def missing(machine: Machine) -> tuple[str, str, str] | None:
    """Why ports cannot read GPUs' memory: what is seen, why it matters, what helps; else None."""
    if _is_loaded(machine):
        return None
    row = log.last(machine, r"nvidia_peermem: (disagrees about version of|Unknown) symbol")
    if row is None:
        return _not_loaded(machine)
    return (
        "; nvidia_peermem was built for other InfiniBand drivers than the ones that run",
        "NCCL goes through the host's memory, where it cannot do with DMA-BUF (the open modules)",
        (
            "build the driver again beside them: sudo dkms install --force"
            f" nvidia/{nvidia.loaded(machine) or 'VERSION'}; with the GPU operator:"
            " driver.rdma.useHostMofed=true, and delete the driver's pod of this node"
        ),
    )


def _not_loaded(machine: Machine) -> tuple[str, str, str] | None:
    """The closed kernel modules, which want it, run without: the open ones do."""
    if not _is_closed(machine) or "nvidia_uvm" not in (machine.read("/proc/modules") or ""):
        return None
    return (
        "; nvidia_peermem is not loaded",
        "NCCL goes through the host's memory instead of from GPU to GPU",
        (
            "sudo modprobe nvidia-peermem; echo nvidia-peermem | sudo tee"
            " /etc/modules-load.d/nvidia-peermem.conf; where modprobe says Invalid argument, first"
            " NVIDIA's OFED (DOCA-OFED), then the driver again"
        ),
    )


def _is_closed(machine: Machine) -> bool:
    version = machine.read("/proc/driver/nvidia/version") or ""
    return "NVRM" in version and "Open" not in version


def _is_loaded(machine: Machine) -> bool:
    modules = machine.read("/proc/modules") or ""
    return "nvidia_peermem" in modules or "nv_peer_mem" in modules
