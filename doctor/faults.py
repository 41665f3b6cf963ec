"""What the kernel's log says of GPUs that has no number of the driver's, or whose number does not
tell what happened.
"""

from __future__ import annotations

import math
import re

from doctor import kind, over
from doctor.finding import Finding, warn
from host import kernel, limits, nvidia, pci
from host.machine import Machine

# A GPU's reads and writes that an IOMMU does not let through, of AMD or Intel.
_REFUSED = re.compile(
    r"nvidia ([0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT"
    r"|AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?:0000:)?([0-9a-f:.]+) "
    r"|DMAR: \[DMA (?:Read|Write)[^]]*\] Request device \[(?:0x)?([0-9a-f]+:)(?:0x)?([0-9a-f.]+)\]"
    r"(?: PASID \w+)? fault addr"
)
_SOON = 10.0  # seconds
_AWAKE = re.compile("PM: (?:suspend|hibernation: hibernation) exit")
_BEGINS = re.compile(
    r"\b(?:Oops|BUG: (?!workqueue lockup)|kernel BUG|general protection|self-detected stall"
    r"|list_\w+ corruption)"
)
_FRAMES = 40  # rows of a trace of calls
_LOADED = "nvidia-uvm: Loaded the UVM driver"

# Sign; what is seen, with its groups; why; what helps.
_ROOM = (
    (
        re.compile(r"(?=.*dmaAllocMapping).*can't alloc VA space"),
        "the driver ran out of room to map a GPU's memory (BAR1)",
        "programs hang or end, and the GPU may be locked",
        "reboot; Resizable BAR in the BIOS makes that room as large as its memory",
    ),
)
_SWITCH = (
    (
        re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), (?:Fatal,|Severity 1) (.{0,80})"),
        "SXid {1} of the NVSwitch {0}: {2}",
        "a switch between the GPUs, or a link of it, has failed: all of them may hang",
        "reboot; if it comes back, have the machine serviced: nvidia-bug-report.sh",
    ),
)


def found(machine: Machine, said: list[str]) -> Finding | None:
    """What is wrong, in the lines of the log.

    Args:
        said: the lines, in order.
    """
    loaded = next((n for n, row in enumerate(said) if "NVRM: loading NVIDIA" in row), 0)
    told = [x for x in map(_REFUSED.search, said[loaded:]) if x]  # not of the firmware's screen
    # What a guest of this machine does to the card that it was given is the guest's.
    cards = [card.address for card in pci.cards(machine) if card.driver in ("nvidia", "", None)]
    # Rows of Intel's, and of AMD's on old kernels, do not say whose device it is.
    named = [
        (x.group(1), f"0000:{x.group(2) or (x.group(3) or '') + (x.group(4) or '')}") for x in told
    ]
    places = [own or place for own, place in named if own or place in cards]
    refused = [place for place in places if is_ours(machine, place)]
    alone = len(nvidia.ask(machine)[1]) == 1
    if len(refused) == 1 and alone and any(_AWAKE.search(row) for row in said):
        refused = []  # as it woke up
    if refused:
        place, count = refused[-1], len(refused)
        return warn(
            "kernel log",
            f"the IOMMU refused what GPU {place} wanted to reach, {count} time{'s' * (count > 1)}",
            "what it copies may be lost, and programs fail"
            if alone
            else "GPUs that read each other's memory get zeros, or hang",
            "boot with iommu=pt, or turn the IOMMU off in the BIOS; until then NCCL_P2P_DISABLE=1"
            if not alone
            else "boot with iommu=pt, or turn the IOMMU off in the BIOS; update driver and BIOS",
        )
    inside = limits.in_container(machine.root)
    other = None if inside else _faulted(said) or _woken(machine, said)
    return other or matching(said, _ROOM) or (None if inside else matching(said, _SWITCH))


def matching(
    said: list[str], lines: tuple[tuple[re.Pattern[str], str, str, str], ...]
) -> Finding | None:
    """The first of `lines` whose sign a line of the log has."""
    for sign, seen, why, fix in lines:
        row = next((x for x in map(sign.search, said) if x), None)
        if row:
            return warn("kernel log", seen.format(*row.groups()), why, fix)
    return None


def _faulted(said: list[str]) -> Finding | None:
    """The kernel faulted within a module of the driver."""
    begun, called = False, 0
    for row in said:
        begun = begun or ("traps: " not in row and _BEGINS.search(row) is not None)
        begun = begun and re.search(r"\bWARNING: ", row) is None and "---[ end trace" not in row
        # A fault in a function of the kernel's own is of the module that called it.
        called = _FRAMES if re.search(r"RIP: [0-9a-f]+:\w+\+\S+\s*$", row) else called - 1
        frame = r"|Call Trace.*|\] +" if called > 0 else ""
        found = re.search(rf"(?:RIP: [0-9a-f]+:|\bpc : {frame})(\w+)\+\S+ \[(nvidia\w*)\]", row)
        if begun and found and found.group(1) != "init_module":  # the driver's row says that
            return warn(
                "kernel log",
                f"the kernel faulted in {found.group(2)} ({found.group(1)})",
                "what uses the GPUs from then on hangs, or cannot be ended",
                "reboot; if it comes back, another version of the driver, newer or the one before",
            )
    return None


def _woken(machine: Machine, said: list[str]) -> Finding | None:
    """A program lost what it had on a GPU while the machine slept, and fails since it woke up."""
    params = machine.read("/proc/driver/nvidia/params") or ""
    if re.search(r"^PreserveVideoMemoryAllocations: 0", params, re.MULTILINE) is None:
        return None
    awake, failed = -2 * _SOON, None
    for row in said:
        time, fault = kernel.TIME.match(row), kernel.XID.search(row)
        when = float(time.group(1)) if time else math.inf
        if _AWAKE.search(row):
            awake = when
        elif fault and 0 <= when - awake <= _SOON:
            # What draws loses its windows, and starts again.
            failed = failed if over.is_of_a_game(machine, fault) else fault
        elif _LOADED in row:
            failed = None
    if failed is None:
        return None
    return warn(
        "kernel log",
        f"Xid {failed.group(2)} of GPU {failed.group(1)} as the machine woke up",
        "a program used the GPU while it slept, which loses its memory: from then on CUDA may not"
        " start, with error 999",
        "end what uses the GPU, then sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or reboot;"
        " for good: options nvidia NVreg_PreserveVideoMemoryAllocations=1 in /etc/modprobe.d, and"
        " sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate",
    )


def slept(machine: Machine, said: list[str]) -> str:
    """What to try where the machine has slept since CUDA's module was loaded, which may have broken
    it without a word; "" where it has not, or where the GPUs' memory is kept.
    """
    params = machine.read("/proc/driver/nvidia/params") or ""
    if re.search(r"^PreserveVideoMemoryAllocations: 0", params, re.MULTILINE) is None:
        return ""
    rows = [row for row in said if _AWAKE.search(row) or _LOADED in row]
    if not rows or _LOADED in rows[-1] or not any(_LOADED in row for row in rows):
        return ""
    return (
        "; slept since: where CUDA says `unknown error` (999), end what uses the GPU, then sudo"
        " rmmod nvidia_uvm && sudo modprobe nvidia_uvm"
    )


def is_ours(machine: Machine, place: str) -> bool:
    """Whether a GPU may be used from here: a container's log is the host's."""
    given = limits.in_container(machine.root) or limits.in_job(machine.environ, machine.root)
    given = given or kind.is_lxc(machine)
    aside = [c.address for c in pci.cards(machine) if c.driver not in ("nvidia", "", None)]
    if any(address.startswith(place.lower()) for address in aside):
        return False  # a guest has it
    places = [gpu.place for gpu in nvidia.ask(machine)[1]]
    return not given or any(each.startswith(place.lower()) for each in places)
