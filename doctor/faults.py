"""What the kernel's log says of GPUs that has no number of the driver's, or whose number does not
tell what happened.
"""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host import kernel, limits, nvidia, pci
from host.machine import Machine

# A GPU's reads and writes that an IOMMU does not let through, of AMD or Intel.
_REFUSED = re.compile(
    r"nvidia ([0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT"
    r"|DMAR: \[DMA (?:Read|Write)[^]]*\] Request device \[([0-9a-f:.]+)\] fault addr"
)
_TIME = re.compile(r"\[ *([0-9]{1,12}\.[0-9]{1,9})\]")  # seconds since the start
_SOON = 10.0  # seconds
_DISK = re.compile(
    r"(?:I/O|critical medium) error, dev (nvme\d+|sd[a-z]+)"
    r"|(nvme\d+): (?:I/O .*timeout|controller is down|Disabling device after reset failure)"
    r"|md/\w+:md\d+: Disk failure on (nvme\d+|sd[a-z]+)"
    r"|EXT4-fs \(([\w-]+)\): (?:I/O error|Remounting)"
    r"|EXT4-fs error \(device ([\w-]+)\)|(ata\d+)\.\d+: failed command: (?:READ|WRITE)"
)
_AWAKE = "PM: suspend exit"
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
_FOLDER = (
    (
        re.compile(
            r"EXT4-fs warning \(device ([\w-]+)\): ext4_dx_add_entry.*(?:index full|Large dir)"
        ),
        "a folder on {0} is full (ext4's index)",
        "`No space left on device` comes, whatever df says",
        "spread its files over several folders; or sudo tune2fs -O large_dir, on it",
    ),
)
_AROUND = (
    (
        re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s! \[((?:cuda|nv)[^:\]]*)"),
        "a processor hung for {0} s in {1} (soft lockup)",
        "the kernel did not come back from the driver in time: programs hang, or the machine",
        "reboot; if it comes back, another version of the driver or the kernel",
    ),
    (
        re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s! \[((?:python|pt_)[^:\]]*)"),
        "a processor hung for {0} s in {1} (soft lockup)",
        "the kernel did not come back in time: a training hangs, or the machine",
        (
            "reboot; if it comes back, another version of the driver or the kernel; in a virtual"
            " machine ask who runs its host"
        ),
    ),
    (
        # The status' bit 61: not corrected.
        re.compile(
            r"mce: \[Hardware Error\]: (CPU \d+): Machine Check: \d+ Bank \d+:"
            r" [2367abef][0-9a-f]{15}"
        ),
        "{0} reports an error of the hardware (machine check)",
        "a processor, its memory or its bus fails: programs end, or compute wrongly",
        "sudo ras-mc-ctl --errors, or rasdaemon, says which part; then have the machine serviced",
    ),
    (
        re.compile(r"\bnvidia \S+: swiotlb buffer is full"),
        "the driver found no room to copy through (swiotlb buffer is full)",
        "without an IOMMU some memory is reached through a buffer that is too small",
        "switch the IOMMU on in the BIOS; else boot with swiotlb=131072",
    ),
)


def found(machine: Machine, said: list[str]) -> Finding | None:
    """What is wrong, in the lines of the log.

    Args:
        said: the lines, in order.
    """
    told = [x for x in map(_REFUSED.search, said) if x]
    cards = [card.address for card in pci.cards(machine)]
    # Intel's row does not say whose device it is.
    places = [x.group(1) or f"0000:{x.group(2)}" for x in told if x.group(1) or _of(x, cards)]
    refused = [place for place in places if is_ours(machine, place)]
    if refused:
        place, count = refused[-1], len(refused)
        return warn(
            "kernel log",
            f"the IOMMU refused what GPU {place} wanted to reach, {count} time{'s' * (count > 1)}",
            "GPUs that read each other's memory get zeros, or hang",
            "boot with iommu=pt, or turn the IOMMU off in the BIOS; until then NCCL_P2P_DISABLE=1",
        )
    inside = limits.in_container(machine.root)
    other = None if inside else _faulted(said) or _woken(machine, said)
    return other or _told(said, _ROOM) or (None if inside else _told(said, _SWITCH))


def _of(row: re.Match[str], cards: list[str]) -> bool:
    """Whether Intel's row is of a GPU."""
    return f"0000:{row.group(2)}" in cards


def _told(
    said: list[str], lines: tuple[tuple[re.Pattern[str], str, str, str], ...]
) -> Finding | None:
    for sign, seen, why, fix in lines:
        row = next((x for x in map(sign.search, said) if x), None)
        if row:
            return warn("kernel log", seen.format(*row.groups()), why, fix)
    return None


def around(machine: Machine, said: list[str]) -> Finding | None:
    """What failed around the GPUs, to be said where none of them has failed: a processor, a file
    server that does not answer, a disk.
    """
    if limits.in_container(machine.root):
        return None
    return _told(said, _AROUND) or _stores(said)


def _stores(said: list[str]) -> Finding | None:
    """What is read or saved there hangs."""
    silent = ""
    for row in said:
        found = re.search(r"nfs: server (\S+) (not responding|OK)", row)
        if found:
            silent = found.group(1) if found.group(2) != "OK" else ""
    if silent:
        return warn(
            "kernel log",
            f"the file server {silent} does not answer (NFS)",
            "what reads or saves there hangs, a training as well",
            "ask whoever runs it; until then keep data and runs/ on a disk of this machine",
        )
    failing = map(_DISK.search, said)
    bad = next((each[each.lastindex or 0] for each in failing if each), None)
    if bad is None:
        return _told(said, _FOLDER)
    return warn(
        "kernel log",
        f"the disk {bad} has errors, or did not answer in time",
        "data may be read wrong, and checkpoints not be saved",
        f"lsblk -s /dev/{bad} says which disk that is; sudo smartctl -a /dev/DISK; save what"
        " matters, and replace it"
        if re.match(r"dm-|md\d|sd[a-z]+\d|nvme\d+n\d+p", bad)
        else f"sudo smartctl -a /dev/{bad}; save what matters, and replace it",
    )


def _faulted(said: list[str]) -> Finding | None:
    """The kernel faulted within a module of the driver."""
    begun = False
    for row in said:
        begun = begun or re.search(r"\b(Oops|BUG: |kernel BUG|general protection)", row) is not None
        found = re.search(r"RIP: [0-9a-f]+:(\w+)\+\S+ \[(nvidia\w*)\]", row)
        found = found or re.search(r"\bpc : (\w+)\+\S+ \[(nvidia\w*)\]", row)
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
        time, fault = _TIME.match(row), kernel.XID.search(row)
        when = float(time.group(1)) if time else 0.0
        if _AWAKE in row:
            awake = when
        elif fault and 0 <= when - awake <= _SOON:
            failed = fault
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
        " sudo systemctl enable nvidia-suspend nvidia-resume",
    )


def slept(machine: Machine, said: list[str]) -> str:
    """What to try where the machine has slept since CUDA's module was loaded, which may have broken
    it without a word; "" where it has not, or where the GPUs' memory is kept.
    """
    params = machine.read("/proc/driver/nvidia/params") or ""
    if re.search(r"^PreserveVideoMemoryAllocations: 0", params, re.MULTILINE) is None:
        return ""
    rows = [row for row in said if _AWAKE in row or _LOADED in row]
    if not rows or _AWAKE not in rows[-1] or not any(_LOADED in row for row in rows):
        return ""
    return (
        "; slept since: where CUDA says `unknown error` (999), end what uses the GPU, then sudo"
        " rmmod nvidia_uvm && sudo modprobe nvidia_uvm"
    )


def is_ours(machine: Machine, place: str) -> bool:
    """Whether a GPU may be used from here: a container's log is the host's."""
    given = limits.in_container(machine.root) or limits.in_job(machine.environ, machine.root)
    places = [gpu.place for gpu in nvidia.ask(machine)[1]]
    return not given or any(each.startswith(place.lower()) for each in places)
