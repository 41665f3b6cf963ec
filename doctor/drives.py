"""Whether the disks that a training reads from and writes to are whole, and fast."""

from __future__ import annotations

import re

from doctor import kind, mounts
from doctor.finding import Finding, warn
from host import limits, nvidia
from host.machine import Machine
from host.text import number, whole

_USB2, _SLOW = 480, 5.0  # Mb/s; GT/s
_PART = r"(?<=\d)p\d+$|(?<=sd[a-z])\d+$"  # of a disk
_BUSY = 50  # per cent
_DEEP = 16  # devices that one is made of
_RAID = re.compile(
    r"\b(PERC|MegaRAID|LOGICAL VOLUME|RAID|AVAGO|LSI|MR\d{3}|Smart Array|ServeRAID"
    r"|LogicalDrv|NETAPP|PURE|NVME|EMC|PowerStore|2145|LIO-ORG|3PARdata|P?SSD|Extreme"
    r"|SMC\d{4}|PRAID|ARC-\d|RTL9210|ASMT)",
    re.IGNORECASE,
)


def slow(machine: Machine, seen: str, places: list[str]) -> Finding | None:
    """What GPUs would wait for.

    Args:
        seen: what is said of the disk so far.
        places: folders that a training reads or writes, its data last.
    """
    degraded = None if limits.in_container(machine.root) else _degraded(machine, places)
    if degraded is not None:
        return warn(
            "disk",
            f"{seen}; {degraded}",
            "it is slower, and with too many that fail all that is on it is lost",
            "sudo zpool status -v says which: replace the disk that failed"
            if "ZFS" in degraded
            else "cat /proc/mdstat; sudo mdadm --detail says which: replace the disk that failed",
        )
    device = _rotating(machine, places[-1])
    if device is not None:
        return warn(
            "disk",
            f"{seen}; the data is on {device}, which says that it rotates",
            "pictures are read in a new order each epoch, a hundred or two a second: GPUs wait",
            "put the data on an SSD; what fits into memory is read slowly once",
        )
    narrow = _narrow(machine, places)
    if narrow is not None:
        return warn(
            "disk",
            f"{seen}; {narrow}",
            "loaders that read there are slow, and the GPUs wait",
            "another port and the cable that came with it (blue, SS, USB-C)"
            if "USB" in narrow
            else "seat the disk again, or in another slot; the BIOS may share its lanes out",
        )
    busy = _waited_for(machine)
    if busy is not None:
        return warn(
            "disk",
            f"{seen}; programs waited for disks {busy:.0f} % of the last minute (pressure)",
            "loaders that read there are slow, and the GPUs wait",
            "iostat -x 5, or sudo iotop -o, say who; end that, or put the data on a faster disk"
            " (lsblk -d -o NAME,ROTA: 1 is one that rotates); where no disk is busy, it is"
            " a program with io_uring, which kernels up to 6.14 count so: nothing to do",
        )
    return None


def _degraded(machine: Machine, places: list[str]) -> str | None:
    """The RAID or pool that runs, caches or data are on, where it lacks a disk."""
    for path in places:
        device, _, system = mounts.of(machine, path)
        pool = device.partition("/")[0]
        state = (machine.read(f"/proc/spl/kstat/zfs/{pool}/state") or "").strip()
        if system == "zfs" and pool and state == "DEGRADED":
            return f"the pool {pool} lacks a disk (ZFS: DEGRADED)"
        for name in _below(machine, device):
            lacks = whole(machine.read(f"/sys/block/{name}/md/degraded")) if name[:2] == "md" else 0
            if lacks:
                return f"{name} lacks {lacks} of its disks (RAID)"
    return None


def _narrow(machine: Machine, places: list[str]) -> str | None:
    """A disk that the training's folders are on, whose link is far slower than itself."""
    if kind.is_guest(machine) or not nvidia.ask(machine)[1]:
        return None
    disks = [name for path in places for name in _below(machine, mounts.of(machine, path)[0])]
    for name in (re.sub(_PART, "", disk) for disk in disks):
        where = machine.real(f"/sys/block/{name}")
        port = re.search(r"^.*/usb\d+/(?:[\d.-]+/)*?(?=[\d.-]+:)", where)
        rate = whole(machine.read(f"{port.group()}speed")) if port else None
        if rate is not None and rate <= _USB2:
            return f"{name} runs as USB 2 ({rate} Mb/s)"
        control = re.match(r"nvme\d+", name)
        card = f"/sys/class/nvme/{control.group()}/device" if control else ""
        told = ("current_link_width", "max_link_width", "current_link_speed")
        said = [(machine.read(f"{card}/{each}") or "") if card else "" for each in told]
        lanes, most, speed = (number(each.split(" ")[0].strip()) for each in said)
        if lanes and most and speed and lanes == 1 < most and speed <= _SLOW:
            return f"{name} has 1 of its {most:.0f} lanes, at {speed:g} GT/s"
    return None


def _below(machine: Machine, device: str) -> list[str]:
    """The block device of a mount, and those that it is made of: of LVM, of encryption."""
    if not device.startswith("/dev/"):
        return []
    found: list[str] = []
    left = [machine.real(device).rpartition("/")[2]]
    while left and len(found) < _DEEP:
        found.append(left.pop())
        left += machine.names(f"/sys/block/{found[-1]}/slaves")
    return found


def _waited_for(machine: Machine) -> float | None:
    """Per cent of the last minute in which some program waited for a disk; None: of little."""
    said = machine.read("/proc/pressure/io") or ""
    found = re.search(r"^some .*\bavg60=([0-9.]{1,6})\b", said, re.MULTILINE)
    busy = number(found.group(1)) if found else None
    return busy if busy is not None and busy >= _BUSY else None


def _rotating(machine: Machine, place: str) -> str | None:
    """The disk that the data is on, where that turns; a report is not to name the folder."""
    # A guest's disks say so whatever they are.
    kept = [name for name in machine.names(place) if not name.startswith(".")]
    if kind.is_guest(machine) or not nvidia.ask(machine)[1] or not kept:
        return None
    device = mounts.of(machine, place)[0]
    if device.startswith("/dev/mapper/"):
        device = machine.real(device)
    found = re.fullmatch(r"/dev/(?:(sd[a-z]+)\d*|(md\d+|dm-\d+))", device)
    name = (found.group(1) or found.group(2)) if found else ""
    # What a RAID controller makes of SSDs says that it turns, and a case of USB may.
    disks = (
        [re.sub(r"(?<=sd[a-z])\d+$", "", disk) for disk in _below(machine, device)] if name else []
    )
    model = " ".join(
        machine.read(f"/sys/block/{disk}/device/{word}") or ""
        for disk in disks
        for word in ("vendor", "model")
    )
    if _RAID.search(model):
        return None
    turns = (machine.read(f"/sys/block/{name}/queue/rotational") or "").strip() == "1"
    return device if name and turns else None
