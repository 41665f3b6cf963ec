"""What the kernel's log says of disks and file servers that a training reads from and saves to."""

from __future__ import annotations

import re

from doctor import faults, kind, servers
from doctor.finding import Finding, warn
from host.machine import Machine

_DISK = re.compile(
    r"(?:I/O|critical medium) error, dev (nvme\d+|(?:sd|vd|xvd)[a-z]+|mmcblk\d+)"
    r"|(mmcblk\d+): error -\d+ (?:transferring|sending|whilst)"
    r"|(nvme\d+): (?:I/O .*timeout(?!, completion polled)|controller is down"
    r"|Disabling device after reset failure)"
    r"|md/\w+:md\d+: Disk failure on (nvme\d+|sd[a-z]+)"
    r"|EXT4-fs \(([\w-]+)\): (?:I/O error|Remounting)"
    r"|EXT4-fs error \(device ([\w-]+)\)(?!.*(?:checksum|bad block bitmap|bad header))"
    r"|(ata\d+)\.\d+: failed command: (?:READ|WRITE)"
)
_ON = re.compile(r"(?:BTRFS .*\(device |XFS \(|EXT4-fs \()(sd[a-z]+)\d*\b")
_MENDED = re.compile(
    r"(XFS \([\w-]+\)): (?:User initiated shutdown|Ending (?:clean mount|recovery))"
    r"|BTRFS info \((device [\w-]+)[^)]*\): (?:first mount|last unmount) of"
    r"|(?:EXT4-fs|XFS) (\([\w-]+\)): [Uu]nmounting [Ff]ilesystem"
    r"|device-mapper: (thin: \S+): (?:switching pool to write|growing the data device)"
)
_VOLUME = re.compile(r"(x?vd[a-z]+)\d*$")
_BACK = re.compile(r"(nvme\d+): Successfully reconnected")
_MULTIPATH = "device handler registered"
_ASLEEP = re.compile(r"(nvme\d+): Does your device have a faulty power saving mode enabled")
# Sign; what is seen, with its groups; why; what helps.
_SYSTEMS = (
    (
        re.compile(
            r"EXT4-fs warning \(device ([\w-]+)\): ext4_dx_add_entry.*(?:index full|Large dir)"
        ),
        "a folder on {0} is full (ext4's index)",
        "`No space left on device` comes, whatever df says",
        "spread its files over several folders; or sudo tune2fs -O large_dir, on it",
    ),
    (
        re.compile(
            r"EXT4-fs (?:error )?\((?:device )?([\w-]+)\):? (?:warning: mounting fs with errors"
            r"|error count since|.*(?:checksum|bad block bitmap|bad header))"
        ),
        "the file system on {0} has noted errors (ext4)",
        "what is read from it may be wrong; it may be mounted read-only again",
        (
            "unmount it and sudo e2fsck -f on it (the root: boot with fsck.mode=force); sudo"
            " smartctl -a on its disk"
        ),
    ),
    (
        re.compile(
            r"BTRFS \w+ \(device ([\w-]+)[^)]*\): (?:parent transid verify failed|corrupt leaf"
            r"|bad tree block start|failed to read chunk root)"
        ),
        "the file system on {0} is damaged (btrfs)",
        "what reads there ends with an error, or it cannot be mounted",
        "save what matters; btrfs check on it, unmounted; memtest86+; sudo smartctl -a on its disk",
    ),
    (
        re.compile(r"BTRFS: error \(device ([\w-]+)[^)]*\).*errno=-28"),
        "{0} has no room for what it notes of its files (btrfs), and takes no more",
        "nothing can be saved there, whatever df says",
        "reboot; delete some files, and sudo btrfs balance start -dusage=10 on it",
    ),
    (
        re.compile(r"BTRFS \w+ \(device ([\w-]+)[^)]*\): read error corrected"),
        "what was read from {0} was wrong, and its copy right (btrfs)",
        "a disk of it, or the memory, begins to fail",
        "sudo btrfs scrub start -B on it; sudo smartctl -a on its disks",
    ),
    (
        re.compile(r"BTRFS \w+ \(device ([\w-]+)[^)]*\): (?:csum failed|forced readonly)"),
        "what is read from {0} is not what was written there (btrfs)",
        "its memory or its disk fails: reading ends with an error, or nothing can be saved",
        (
            "save what matters; sudo btrfs scrub start -B on it, memtest86+ for the memory, and"
            " sudo smartctl -a on the disk"
        ),
    ),
    (
        re.compile(
            r"(?i)XFS \(([\w-]+)\): .*(?:corruption.*detected|log I/O error|shutting down file ?s"
            r"|Metadata CRC error|run xfs_repair)"
        ),
        "the file system on {0} is damaged (XFS)",
        "what reads or saves there ends with an error",
        "unmount it, sudo xfs_repair on it, and sudo smartctl -a on its disk",
    ),
    (
        re.compile(
            r"device-mapper: thin: (\S+): switching pool to (?:out-of-data-space|read-only)"
        ),
        "the thin pool of LVM ({0}) below a disk is full",
        "what saves there ends with an error, whatever df says",
        "sudo lvs -a says which; sudo lvextend it, or sudo fstrim -av to give back what is free",
    ),
    (
        re.compile(r"Pool '(\S+)' has encountered an uncorrectable I/O failure and has been susp"),
        "the pool {0} is suspended (ZFS)",
        "what reads or saves there hangs",
        "sudo zpool status -v says which disk; when it answers again: sudo zpool clear",
    ),
)


def found(machine: Machine, said: list[str]) -> Finding | None:
    """A disk or a file server that does not answer, or answers wrongly.

    Args:
        said: the lines of the log, in order.
    """
    rows = _since_mended(machine, said)
    rows = [row for row in rows if not _is_online(machine, row)]
    return servers.silent(machine, said) or _disk(machine, said) or faults.matching(rows, _SYSTEMS)


def _since_mended(machine: Machine, said: list[str]) -> list[str]:
    """The lines without those of what was mounted anew since, has room again, or was pulled out."""
    rows: list[str] = []
    for row in said:
        told = _MENDED.search(row)
        if told:
            name = next(word for word in told.groups() if word)
            mended = re.compile(rf"(?<!\w){re.escape(name)}(?![\w-])")
            rows = [each for each in rows if not mended.search(each)]
        meant = rows and re.search(r"XFS \(([\w-]+)\): ", row)
        shut = meant and any(f"({meant.group(1)}): User initiated" in each for each in rows)
        if not shut:
            rows.append(row)
    disks = {x.group(1) for x in map(_ON.search, rows) if x}
    gone = [disk for disk in disks if _pulled(machine, said, disk)]
    return [row for row in rows if not any(re.search(rf"[( ]{disk}\d*\b", row) for disk in gone)]


def _is_online(machine: Machine, row: str) -> bool:
    """Whether a pool of ZFS's that was suspended works again, or is not here any more."""
    pool = re.search(r"Pool '(\S+)' has encountered", row)
    pools = "/proc/spl/kstat/zfs"
    if pool is None or not machine.names(pools):
        return False
    state = machine.read(f"{pools}/{pool.group(1)}/state")
    if state is None:  # ZFS before 0.8 has no such file
        return pool.group(1) not in machine.names(pools)
    return "SUSPENDED" not in state


def _since_back(said: list[str]) -> list[str]:
    """The lines without those of a disk over the network that was connected anew since."""
    rows: list[str] = []
    for row in said:
        back = _BACK.search(row)
        if back:
            disk = re.compile(rf"\b{back.group(1)}(?:n\d+)?\b")
            rows = [each for each in rows if not disk.search(each)]
        rows.append(row)
    return rows


def _is_passive(row: str) -> bool:
    """Whether it asks a disk's first sector by a path that stands by."""
    return re.search(r"I/O error, dev sd[a-z]+, sector 0\b", row) is not None


def _is_out(machine: Machine, said: list[str], disk: str, here: list[str]) -> bool:
    """Whether a disk was taken out, or a reader has no card in it: not one that fell out itself."""
    name = re.match(r"sd[a-z]+|nvme\d+", disk)
    if name is None or not here:
        return False
    fell = re.search(rf"{name.group()}: Disabling device|\bata\d.*: disable", "\n".join(said))
    if fell or f"/dev/{name.group()}" in (machine.read("/proc/mounts") or ""):
        return False
    own = [each for each in here if re.match(rf"{name.group()}(?:n\d+)?$", each)]
    return not own or all((machine.read(f"/sys/block/{n}/size") or "").strip() == "0" for n in own)


def _disk(machine: Machine, said: list[str]) -> Finding | None:
    """One with errors, or that does not answer in time."""
    rows = [row for row in said if not _is_passive(row)] if _MULTIPATH in "\n".join(said) else said
    rows = _since_back(rows)
    failing = [each[each.lastindex or 0] for each in map(_DISK.search, rows) if each]
    here = machine.names("/sys/block")
    # A volume that was taken from a guest is no disk any more.
    volumes = {disk: x.group(1) for disk in failing if (x := _VOLUME.match(disk))}
    failing = [disk for disk in failing if not _is_out(machine, said, disk, here)]
    failing = [disk for disk in failing if not here or volumes.get(disk, here[0]) in here]
    bad = next((disk for disk in failing if not _pulled(machine, said, disk)), None)
    if bad is None:
        return None
    why = "data may be read wrong, and checkpoints not be saved"
    asleep = next((x.group(1) for x in map(_ASLEEP.search, said) if x), None)
    if asleep is not None and bad.startswith(asleep):
        return warn(
            "kernel log",
            f"the disk {asleep} did not wake up from saving power",
            "what is on it is gone until the machine starts anew: " + why,
            "boot with nvme_core.default_ps_max_latency_us=0 pcie_aspm=off pcie_port_pm=off, and"
            " update its firmware; if sudo smartctl -a shows errors, replace it",
        )
    if bad.startswith("mmcblk"):
        return warn(
            "kernel log",
            f"the memory card {bad} has errors, or did not answer in time",
            why,
            "save what matters, and replace it; better an NVMe disk, which a training wears less",
        )
    if kind.is_guest(machine):
        return warn(
            "kernel log",
            f"the disk {bad} has errors, or did not answer in time",
            why,
            "it is the host's, or of its network: give the volume more throughput, ask the"
            " provider; at Amazon boot with nvme_core.io_timeout=4294967295",
        )
    return warn(
        "kernel log",
        f"the disk {bad} has errors, or did not answer in time",
        why,
        "ls -l /dev/disk/by-path says which disk that is; sudo smartctl -a /dev/DISK; save what"
        " matters, and replace it; or its cable"
        if re.match(r"ata\d", bad)
        else f"lsblk -s /dev/{bad} says which disk that is; sudo smartctl -a /dev/DISK; save what"
        " matters, and replace it"
        if re.match(r"dm-|md\d|sd[a-z]+\d|nvme\d+n\d+p", bad)
        else f"sudo smartctl -a /dev/{bad}; save what matters, and replace it",
    )


def _pulled(machine: Machine, said: list[str], disk: str) -> bool:
    """Whether it is a stick that somebody has pulled out, and nothing is mounted from it."""
    text = "\n".join(said)
    disk = re.sub(r"(?<=^sd)([a-z]+)\d+$", r"\1", disk)  # the whole, of a part
    card = re.match(r"mmcblk(\d+)", disk)
    if card and re.search(rf"mmc{card.group(1)}: card \w+ removed", text):
        return f"/dev/{disk}" not in (machine.read("/proc/mounts") or "")
    attached = re.search(rf"sd (\d+):\S* \[{disk}\] Attached SCSI (removable )?disk", text)
    stick = attached is not None and (
        attached.group(2) is not None
        or re.search(rf"scsi host{attached.group(1)}: (?:usb-storage|uas)", text) is not None
        or re.search(rf"USB disconnect.*(?:\n.*){{0,5}}error, dev {disk}\b", text) is not None
    )
    # What a board's management controller offers is no disk.
    offered = rf"scsi {attached.group(1) if attached else '-'}:\S* Direct-Access +(?:AMI|ATEN|IPMI)"
    if attached is not None and re.search(offered, text):
        return True
    mounted = f"/dev/{disk}" in (machine.read("/proc/mounts") or "")
    return stick and not mounted and any("USB disconnect" in row for row in said)
