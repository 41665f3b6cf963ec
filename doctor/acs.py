"""Whether GPUs reach each other straight over PCIe.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control)
"""

from __future__ import annotations

import re

from doctor import away, kind, log, nccl, topology
from doctor.finding import Finding, ok, skip, warn
from host import limits, nvidia, pci
from host.machine import Machine

_NAME = "GPU to GPU"
_PORT = 2


def redirected(machine: Machine) -> Finding:
    """No bridge above a GPU sends what it reads of another one by way of the processor (ACS)."""
    cards = pci.cards(machine)
    forced = _forced(machine, cards) or _misreported(machine, cards)
    if forced is not None:
        return forced
    guest = kind.is_guest(machine)
    if len(cards) > 1 and limits.in_container(machine.root) and not guest:
        several = len(nvidia.ask(machine)[1]) > 1  # that it was given
        found = _translated(machine, cards) if several else None
        return found or skip(_NAME, "the host's to say")
    if len(cards) < 2 or guest:
        return skip(_NAME, "fewer than two GPUs" if len(cards) < 2 else "the host's to say")
    said = machine.run("lspci", "-vvv").out
    translated = _translated(machine, cards)
    if "ACSCtl" not in said:
        return translated or skip(_NAME, "not known: this user may not read it (sudo lspci -vvv)")
    above = {_short(part) for card in cards for part in card.path.split("/")[:-1] if ":" in part}
    if _is_let_through(machine):
        above = _switches(machine, cards)
    places = []
    for block in re.split(r"\n(?=\S)", said):
        place = _short(block.split(" ", 1)[0])
        control = re.search(r"ACSCtl:.*\bReqRedir\+", block)
        if control and place in above:
            places.append(place)
    if not places or _apart(machine):
        return translated or ok(_NAME, "no bridge above them redirects")
    return warn(
        _NAME,
        f"access control (ACS) is on at {', '.join(places)}, above the GPUs",
        "NCCL hangs, or goes the long way: what GPUs read of each other goes by the processor",
        "BIOS: ACS off (and IOMMU off, or iommu=pt); or, after each boot, for each of them:"
        f" sudo setpci -s {places[0]} ECAP_ACS+6.w=0000; until then NCCL_P2P_DISABLE=1",
    )


def _switches(machine: Machine, cards: list[pci.Card]) -> set[str]:
    """Bridges above GPUs that stand at a switch with another one, or with a port of InfiniBand.
    Between ports of the processor's own all goes by the processor anyway, where the IOMMU lets it
    through.
    """
    ways = [[part for part in card.path.split("/")[:-1] if ":" in part] for card in cards]
    ports = [f"{nccl.FABRIC}/{name}/device" for name in machine.names(nccl.FABRIC)]
    others = [machine.real(port).split("/")[:-1] for port in ports]
    # The first is the bus itself, and the second a port of the processor's own.
    met = [part for way in (*ways, *others) for part in way[_PORT:] if ":" in part]
    switched = [way for way in ways if any(met.count(part) > 1 for part in way[_PORT:])]
    return {_short(part) for way in switched for part in way}


def _is_let_through(machine: Machine) -> bool:
    """Whether the IOMMU is told to let through what drivers have mapped themselves."""
    line = (machine.read("/proc/cmdline") or "").split()
    return bool({"iommu=pt", "iommu.passthrough=1"} & {*line})


def _forced(machine: Machine, cards: list[pci.Card]) -> Finding | None:
    """A virtual machine whose driver is told to let GPUs reach each other that are not made for it.

    https://github.com/NVIDIA/nccl/issues/2335
    """
    told = machine.read("/proc/driver/nvidia/params") or ""
    forced = "PeerMappingOverride=1" in told and kind.is_guest(machine)
    # NVSHMEM asks for it on cards that are made for it.
    gaming = all("GeForce" in gpu.name for gpu in nvidia.ask(machine)[1])
    if len(cards) < 2 or not forced or not gaming or not _straight(machine):
        return None
    return warn(
        _NAME,
        "the driver is told that they reach each other (PeerMappingOverride), in a virtual machine",
        "what one writes may never get to the other: NCCL hangs, or computes other numbers",
        "NCCL_P2P_DISABLE=1; take the line out of /etc/modprobe.d, and x-nv-gpudirect-clique out of"
        " the virtual machine",
    )


def _misreported(machine: Machine, cards: list[pci.Card]) -> Finding | None:
    """A driver that offers what GeForce cards do not have.

    https://github.com/pytorch/pytorch/issues/119638, https://github.com/NVIDIA/nccl/issues/1127
    """
    version = nvidia.loaded(machine) or ""
    of_525 = re.fullmatch(r"525\.(\d{1,3})\..*", version)
    wrong = version.startswith("545.") or (of_525 is not None and int(of_525.group(1)) < 105)
    names = [gpu.name for gpu in nvidia.ask(machine)[1]]
    if len(cards) < 2 or not all(re.search(r"GeForce RTX [345]0", name) for name in names):
        return None
    patched = all("RTX 50" in name for name in names) and not wrong
    told = machine.read("/proc/driver/nvidia/params") or ""
    if patched and "RegistryDwords" in told and "RMForceStaticBar1" not in told:
        return _unmapped() if _straight(machine) else None
    if not wrong or not _straight(machine):
        return None
    return warn(
        _NAME,
        f"driver {version} says that they reach each other, and such cards do not",
        "copies from GPU to GPU give other numbers, and NCCL hangs",
        "another driver: 535, or 550 and newer; until then NCCL_P2P_DISABLE=1",
    )


def _unmapped() -> Finding:
    """A patched driver for cards whose memory is not mapped whole by itself.

    https://github.com/noonghunna/club-3090 (docs/PCIE_P2P.md)
    """
    return warn(
        _NAME,
        "a patched driver says that they reach each other, and does not map their memory whole",
        "nothing arrives: NCCL hangs as it starts",
        'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;PeerMappingOverride=1" in'
        " /etc/modprobe.d, the initramfs anew, and reboot; until then NCCL_P2P_DISABLE=1",
    )


def _translated(machine: Machine, cards: list[pci.Card]) -> Finding | None:
    """The IOMMU is on, and not told to let through what drivers have mapped themselves.

    CUDA does not support copies from GPU to GPU over PCIe then, but for virtual machines:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (IOMMU on Linux).
    """
    line = (machine.read("/proc/cmdline") or "").split()
    places = [f"/sys/bus/pci/devices/{card.address}/iommu_group/type" for card in cards]
    kinds = [kind for kind in map(machine.read, places) if kind]
    through = [kind for kind in kinds if kind.startswith("DMA")]
    # Older kernels have no such file; all print that line, also where no IOMMU is on.
    grouped = bool(machine.names("/sys/kernel/iommu_groups"))
    if not kinds and grouped and log.last(machine, "iommu: Default domain type: Translated"):
        through = ["DMA"]
    if _is_let_through(machine) or (kinds and not through):
        return None
    # AMD's processors do not know that word.
    if "AuthenticAMD" in (machine.read("/proc/cpuinfo") or ""):
        line = [word for word in line if word != "intel_iommu=on"]
    aside = sum(card.driver in away.ASIDE for card in cards)
    where = "on the host: " * limits.in_container(machine.root)
    if "intel_iommu=on" in line and len(cards) - aside > 1 and not _apart(machine):
        return warn(
            _NAME,
            "the IOMMU translates what they read of each other (intel_iommu=on)",
            "copies from GPU to GPU may hang, or give zeros",
            f"{where}take intel_iommu=on off the kernel's command line, or add iommu=pt; reboot;"
            " until then NCCL_P2P_DISABLE=1",
        )
    arm = "CPU implementer" in (machine.read("/proc/cpuinfo") or "")  # whose IOMMU is made for it
    if "intel_iommu=on" in line or not through or arm or not _straight(machine):
        return None
    return warn(
        _NAME,
        "they reach each other over PCIe, and the IOMMU translates that",
        "CUDA does not support it: copies from GPU to GPU may hang, or give other numbers; peer"
        " access, below, compares them",
        f"{where}boot with iommu=pt, or BIOS: IOMMU off (AMD: Advanced, AMD CBS, NBIO); until then"
        " NCCL_P2P_DISABLE=1",
    )


def _straight(machine: Machine) -> bool:
    """Whether there are two GPUs that the driver lets read each other, and no NVLink joins them."""
    linked, allowed = (topology.matrix(machine, *words) for words in (("-m",), ("-p2p", "r")))
    return any(
        word == "OK" and not re.match("NV|X", linked.get(pair, "X"))
        for pair, word in allowed.items()
    )


def _apart(machine: Machine) -> bool:
    """Whether the driver is known to let no GPU read another one over PCIe."""
    return bool(topology.matrix(machine, "-p2p", "r")) and not _straight(machine)


def _short(place: str) -> str:
    """An address as lspci has it: without a domain of zeros."""
    return place[5:] if place.startswith("0000:") else place
