"""What the kernel's log says of a GPU's surroundings: processors, disks, file servers, sleep; and
what a driver says that may be nothing.
"""

from __future__ import annotations

import re

from doctor import faults
from doctor.finding import Finding, warn
from host import limits
from host.machine import Machine

_DISK = re.compile(
    r"(?:I/O|critical medium) error, dev (nvme\d+|sd[a-z]+)"
    r"|(nvme\d+): (?:I/O .*timeout|controller is down|Disabling device after reset failure)"
    r"|md/\w+:md\d+: Disk failure on (nvme\d+|sd[a-z]+)"
    r"|EXT4-fs \(([\w-]+)\): (?:I/O error|Remounting)"
    r"|EXT4-fs error \(device ([\w-]+)\)|(ata\d+)\.\d+: failed command: (?:READ|WRITE)"
)

_NO_SLEEP = re.compile(
    r"PreserveVideoMemoryAllocations module parameter is set\. System Power Management attempted"
    r" without"
)
# Sign; what is seen, with its groups; why; what helps.
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
        re.compile(r"RC watchdog: GPU is probably locked"),
        "the driver's watchdog found a GPU locked",
        "programs on it hang, or the machine does",
        (
            "reboot; if it comes back, options nvidia NVreg_DynamicPowerManagement=0x00 in"
            " /etc/modprobe.d where that is 0x02, or another version of the driver"
        ),
    ),
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
    """What failed around the GPUs, to be said where none of them has failed: a processor, a file
    server that does not answer, a disk.
    """
    if limits.in_container(machine.root):
        return None
    return faults.matching(said, _AROUND) or _unslept(machine, said) or _stores(said)


def _unslept(machine: Machine, said: list[str]) -> Finding | None:
    """The driver did not let the machine sleep."""
    if not any(map(_NO_SLEEP.search, said)):
        return None
    enabled = machine.run("systemctl", "is-enabled", "nvidia-suspend").out.strip() == "enabled"
    return warn(
        "kernel log",
        "the machine was to sleep, and the driver refused (PreserveVideoMemoryAllocations)",
        "what saves the GPUs' memory did not run: sleep fails, or freezes the machine",
        "put it to sleep by systemctl suspend, which runs nvidia-suspend before"
        if enabled
        else "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate; sudo reboot",
    )


def _stores(said: list[str]) -> Finding | None:
    """What is read or saved there hangs."""
    silent = ""
    for row in said:
        told = re.search(r"nfs: server (\S+) (not responding|OK)", row)
        if told:
            silent = told.group(1) if told.group(2) != "OK" else ""
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
        return faults.matching(said, _FOLDER)
    return warn(
        "kernel log",
        f"the disk {bad} has errors, or did not answer in time",
        "data may be read wrong, and checkpoints not be saved",
        f"lsblk -s /dev/{bad} says which disk that is; sudo smartctl -a /dev/DISK; save what"
        " matters, and replace it"
        if re.match(r"dm-|md\d|sd[a-z]+\d|nvme\d+n\d+p", bad)
        else f"sudo smartctl -a /dev/{bad}; save what matters, and replace it",
    )
