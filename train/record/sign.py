"""What a writer shows of itself in a run directory: who it is, and a count that moves."""

import json
import os
import platform
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from host import regular

NAME = ".alive"
LENGTH = 1024
"""Bytes of the file; it keeps its length, which network file systems cache."""
# One kernel sees all that its processes do on these, so its lock is enough among them.
_LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"),
    *("ramfs", "vfat", "exfat", "ntfs3", "apfs", "hfs"),
}


def far(folder: Path) -> bool:
    """Whether `folder` is on a file system that other machines may write as well."""
    where, kind = folder.resolve(), ""
    longest = -1
    for mount in psutil.disk_partitions(all=True):
        parts = len(Path(mount.mountpoint).parts)
        if parts >= longest and where.is_relative_to(mount.mountpoint):
            longest, kind = parts, mount.fstype
    return kind not in _LOCAL


def read(folder: Path) -> str | None:
    """What is there now; each look opens the file, since that is when NFS asks its server."""
    try:
        return regular.read(folder / NAME, LENGTH * 4).decode(errors="replace")
    except FileNotFoundError:
        return None


def fields(text: str | None) -> dict[str, Any]:
    """What a sign says by name; nothing where it is none."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def who(text: str | None) -> str:
    """The writer, for people."""
    about = fields(text)
    if not {"pid", "host", "since"} <= about.keys():
        return "another process"
    return f"process {about['pid']} on {about['host']} since {about['since']}"


def gone(folder: Path, text: str) -> bool:
    """Whether a writer is known to be gone, where this process has the lock."""
    about = fields(text)
    # On a disk of one machine its lock would have held; and one of this kernel can be looked for.
    return (about.get("far") is False and not far(folder)) or _died_here(about)


def _died_here(about: dict[str, Any]) -> bool:
    pid = about.get("pid")
    if about.get("kernel") != kernel() or not isinstance(pid, int) or pid <= 0:
        return False
    if pid == os.getpid():  # as in a container that was started again
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def kernel() -> str:
    """What tells this kernel's processes from those of others."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    return secrets.token_hex(8)  # like no other
