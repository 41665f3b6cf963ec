"""Whether GPUs reach each other straight over PCIe.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control)
"""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, ok, skip, warn
from host import limits, pci
from host.machine import Machine

_NAME = "GPU to GPU"


def redirected(machine: Machine) -> Finding:
    """No bridge above a GPU sends what it reads of another one by way of the processor (ACS)."""
    cards = pci.cards(machine)
    if len(cards) < 2 or limits.in_container(machine.root) or kind.is_guest(machine):
        return skip(_NAME, "fewer than two GPUs" if len(cards) < 2 else "the host's to say")
    said = machine.run("lspci", "-vvv").out
    translated = _translated(machine)
    if "ACSCtl" not in said:
        return translated or skip(_NAME, "not known: this user may not read it (sudo lspci -vvv)")
    above = {_short(part) for card in cards for part in card.path.split("/")[:-1] if ":" in part}
    found = []
    for block in re.split(r"\n(?=\S)", said):
        place = _short(block.split(" ", 1)[0])
        control = re.search(r"ACSCtl:.*\bReqRedir\+", block)
        if control and place in above:
            found.append(place)
    if not found:
        return translated or ok(_NAME, "no bridge above them redirects")
    return warn(
        _NAME,
        f"access control (ACS) is on at {', '.join(found)}, above the GPUs",
        "NCCL hangs, or goes the long way: what GPUs read of each other goes by the processor",
        "BIOS: ACS off (and IOMMU off, or iommu=pt); or, after each boot, for each of them:"
        f" sudo setpci -s {found[0]} ECAP_ACS+6.w=0000; until then NCCL_P2P_DISABLE=1",
    )


def _translated(machine: Machine) -> Finding | None:
    """The IOMMU is on, and not told to let through what drivers have mapped themselves."""
    line = (machine.read("/proc/cmdline") or "").split()
    if "intel_iommu=on" not in line or "iommu=pt" in line:
        return None
    return warn(
        _NAME,
        "the IOMMU translates what they read of each other (intel_iommu=on)",
        "copies from GPU to GPU hang, or give zeros",
        "take intel_iommu=on off the kernel's command line, or add iommu=pt, and reboot; until"
        " then NCCL_P2P_DISABLE=1",
    )


def _short(place: str) -> str:
    """An address as lspci has it: without a domain of zeros."""
    return place[5:] if place.startswith("0000:") else place
