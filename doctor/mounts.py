"""What folders are on: a disk, a file system of the network, a bucket."""

from __future__ import annotations

import re
import shlex

from doctor import kind
from doctor.finding import Finding, fail, warn
from host import limits
from host.machine import Machine
from host.text import whole

_PROGRAMS = (
    "fuse.gcsfuse",
    "fuse.s3fs",
    "fuse.goofys",
    "fuse.rclone",
    "fuse.blobfuse2",
    "fuse.drive",
)
_SERVED = ("fuse.sshfs", "fuse.glusterfs", "fuse.juicefs")


def lustre_quota(machine: Machine, path: str) -> int | None:
    """Bytes that this user's quota, or his group's, leaves on Lustre; None without one."""
    # Files get the folder's group where it says so, else the user's own.
    mode, _, owner = machine.run("stat", "-c", "%a %g", path).out.strip().partition(" ")
    given = len(mode) == 4 and int(mode[0]) & 2 if mode.isdecimal() else False  # setgid
    group = owner if given else machine.run("id", "-g").out.strip() or "0"
    of_both = (("-u", kind.user(machine) or "0"), ("-g", group))
    left = [_lustre_quota(machine, path, *words) for words in of_both]
    return min((each for each in left if each is not None), default=None)


def _lustre_quota(machine: Machine, path: str, *whose: str) -> int | None:
    words = machine.run("lfs", "quota", "-q", *whose, path).out.split()
    used, soft, hard = ([whole(word.rstrip("*")) for word in words[1:4]] + [None] * 3)[:3]
    # The same of files, behind the time that is left; they end a run as bytes do.
    files, few, most = ([whole(word.rstrip("*")) for word in words[5:8]] + [None] * 3)[:3]
    if files is not None and (most or few) and files >= (most or few or 0):
        return 0
    if used is None or not (hard or soft):
        return None
    return 1024 * ((hard or soft or 0) - used)


def _program(machine: Machine, path: str) -> str:
    """What serves a folder; one of Azure's programs does not say so by the kind of file system."""
    device, _, system = of(machine, path)
    return f"fuse.{device}" if system == "fuse" and f"fuse.{device}" in _PROGRAMS else system


def kind_of(machine: Machine, path: str) -> str:
    """The kind of file system that a folder is on: ext4, nfs4."""
    return of(machine, path)[2]


def kept_by_windows(machine: Machine, path: str) -> tuple[str, str] | None:
    """Why one of NTFS is read alone, and what helps.

    https://docs.kernel.org/filesystems/ntfs3.html
    """
    system = kind_of(machine, path)
    if system == "ntfs":
        return (
            "nothing can be saved there: the kernel's old driver for NTFS only reads",
            "mount it with -t ntfs3",
        )
    if system not in ("ntfs3", "fuseblk"):
        return None
    told = "where it is NTFS, " * (system == "fuseblk")
    return (
        f"nothing can be saved there: {told}Windows sleeps, and did not shut down",
        (
            "in Windows: powercfg /h off, and shut it down; where it does not sleep, and the disk"
            " was pulled alone: sudo ntfsfix -d on it"
        ),
    )


def bucket(machine: Machine, places: list[str]) -> Finding | None:
    """A bucket, or the like, that is not what a training takes it for.

    Args:
        places: folders that it reads or writes, runs/ first.
    """
    for path in places:
        program = _program(machine, path)
        name = path.rpartition("/")[2]
        if program not in (*_PROGRAMS, *_SERVED):
            continue
        # Of these alone: `df` waits for a program that hangs.
        if "not connected" in machine.run("df", "-kP", path, seconds=5).err:
            return (fail if path == places[0] else warn)(
                "disk",
                f"{name} is mounted by {program[5:]}, which was ended",
                "what reads or saves there fails: Transport endpoint is not connected",
                "a pod: delete it, and have it made anew (its CSI driver or sidecar mounts it); a"
                " container: mount it again on the host, and start it anew"
                if limits.in_container(machine.root) and "COLAB_RELEASE_TAG" not in machine.environ
                else f"fusermount -u {shlex.quote(_above(machine, path)[1])} (or sudo umount -f),"
                " and mount it again (Colab: drive.mount('/content/drive', force_remount=True));"
                " sudo dmesg | grep -i oom says whether memory ran out",
            )
    device, program = of(machine, places[0])[0], _program(machine, places[0])
    if device != "mountpoint-s3" and program not in _PROGRAMS:
        return None
    refuses = device == "mountpoint-s3"
    return warn(
        "disk",
        f"runs/ is in a bucket ({device if refuses else program[5:]})",
        "checkpoints are written beside each other and renamed: "
        + ("most buckets refuse that there" if refuses else "there that is slow, and not safe"),
        "put runs/ on a disk, and copy it to the bucket: docs/elsewhere.md",
    )


def _rows(machine: Machine) -> list[list[str]]:
    """Device, folder, kind and options of each mount; blanks in names are octal numbers there."""
    text = machine.read("/proc/self/mounts") or machine.read("/proc/mounts") or ""
    rows = [row.split() for row in text.splitlines()]
    return [[_plain(word) for word in row] for row in rows if len(row) > 3]


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word)


def options(machine: Machine, path: str) -> list[str]:
    """What the file system that a folder is on is mounted with."""
    return of(machine, path)[1]


def of(machine: Machine, path: str) -> tuple[str, list[str], str]:
    """The device that a folder is on, what it is mounted with, and the kind of file system."""
    device, _, kind_here, told = _above(machine, path)
    return device, told.split(","), kind_here


FAR = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs")
"""File systems of the network on which no image's layers can be made."""


def point(machine: Machine, path: str) -> str:
    """The folder that the file system is mounted on in which a folder lies."""
    return _above(machine, path)[1]


def _above(machine: Machine, path: str) -> list[str]:
    """Device, folder, kind and options of the mount that a folder is on; empty words without."""
    real = machine.real(path)
    above = [row for row in _rows(machine) if f"{real}/".startswith(f"{row[1].rstrip('/')}/")]
    # Of two at one place the last is in force: what automounts is there first.
    return max(reversed(above), key=lambda row: len(row[1]))[:4] if above else ["", "", "", ""]
