"""Amazon's adapters for several machines (EFA), and what NCCL takes them by."""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host import nvidia
from host.machine import Machine

_INSTALLED = "/opt/amazon/efa_installed_packages"
_REGISTERS = 29  # the minor version of the installer's first whose libfabric does
_AMAZONS = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")


def unbound(machine: Machine) -> Finding | None:
    """Its adapters are on the bus, and no driver has them."""
    bus = "/sys/bus/pci/devices"
    found = [
        name
        for name in machine.names(bus)
        if (machine.read(f"{bus}/{name}/vendor") or "").strip() == "0x1d0f"
        and (machine.read(f"{bus}/{name}/device") or "").strip().startswith("0xefa")
    ]
    shown = re.findall(r"(?m)^(\S+) .*\[1d0f:efa\d\]", machine.run("lspci", "-nnk").out)
    if not (found or shown) or "efa " in (machine.read("/proc/modules") or "efa "):
        return None
    return warn(
        "InfiniBand",
        f"{len(found or shown)} adapters of Amazon's (EFA) are on the bus, and there is no port",
        "the module efa is not loaded: several machines talk over TCP, many times slower",
        "sudo modprobe efa; where it is not there, install EFA's installer again (after a new"
        " kernel, too)",
    )


def wanting(machine: Machine, listed: str) -> tuple[str, str, str] | None:
    """What is not well: what is seen, why it matters, what helps.

    https://github.com/aws/aws-ofi-nccl/issues/584

    Args:
        listed: the libraries that the loader knows.
    """
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    here = [*_AMAZONS, *(path for path in paths if path.startswith("/"))]
    plugin = "libnccl-net" in listed or any(
        name.startswith("libnccl-net") for path in here for name in machine.names(path)
    )
    told = re.search(r"EFA installer version: 1\.(\d{1,3})\.", machine.read(_INSTALLED) or "")
    # Only these let EFA read their memory.
    able = any(re.search(r"\b[ABH][123]00\b", gpu.name) for gpu in nvidia.ask(machine)[1])
    round_it = machine.environ.get("FI_EFA_SET_CUDA_SYNC_MEMOPS") == "0"
    if plugin and told and int(told.group(1)) < _REGISTERS and able and not round_it:
        return (
            f"; EFA's installer is of 1.{told.group(1)}",
            "NCCL from 2.19 on (PyTorch since 2.2) registers no memory with its libfabric",
            "install EFA anew, 1.29 or later; until then FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        )
    local = not machine.has("docker") or machine.environ.get("ENGINE") == "local"
    if local and plugin:
        return None
    return (
        "",
        "NCCL takes it only by a plugin of Amazon's; else TCP",
        "install aws-ofi-nccl, or build on an image that has it: BASE_IMAGE=…",
    )
