"""What folders are on: a disk, a file system of the network, a bucket."""

from __future__ import annotations

from doctor import kind
from doctor.finding import Finding, fail, warn
from host.machine import Machine
from host.text import whole

_PROGRAMS = ("fuse.gcsfuse", "fuse.s3fs", "fuse.goofys", "fuse.rclone", "fuse.blobfuse2")
_MOUNTS = 8  # that are looked at


def lustre_quota(machine: Machine, path: str) -> int | None:
    """Bytes that this user's quota leaves on Lustre, by its own program; None without one."""
    said = machine.run("lfs", "quota", "-q", "-u", kind.user(machine) or "0", path).out
    words = said.split()
    used, soft, hard = ([whole(word.rstrip("*")) for word in words[1:4]] + [None] * 3)[:3]
    if used is None or not (hard or soft):
        return None
    return 1024 * ((hard or soft or 0) - used)


def kind_of(machine: Machine, path: str) -> str:
    """The kind of file system that a folder is on: ext4, nfs4."""
    return of(machine, path)[2]


def dead(machine: Machine) -> Finding | None:
    """A bucket, or the like, whose program was ended: what reads there fails."""
    text = machine.read("/proc/self/mounts") or machine.read("/proc/mounts") or ""
    rows = [row.split() for row in text.splitlines()]
    for row in [row for row in rows if len(row) > 3 and row[2].startswith("fuse.")][:_MOUNTS]:
        if row[2] in _PROGRAMS and "not connected" in machine.run("stat", "-c", "%F", row[1]).err:
            return warn(
                "disk",
                f"{row[1].rpartition('/')[2]} is mounted by {row[2][5:]}, which was ended",
                "what reads there fails: Transport endpoint is not connected",
                f"fusermount -u {row[1]} (or sudo umount -f), and mount it again; sudo dmesg |"
                " grep -i oom says whether memory ran out",
            )
    return None


def bucket(machine: Machine) -> Finding | None:
    """Runs are written into a bucket, where nothing is renamed or written twice."""
    device, _, kind_here = of(machine, f"{machine.home}/runs")
    if device != "mountpoint-s3" and kind_here not in _PROGRAMS:
        return None
    refuses = device == "mountpoint-s3"
    tell = fail if refuses else warn
    return tell(
        "disk",
        f"runs/ is in a bucket ({device if refuses else kind_here[5:]})",
        "checkpoints are written beside each other and renamed: "
        + ("nothing can be renamed there" if refuses else "there that is slow, and not safe"),
        "put runs/ on a disk, and copy it to the bucket: docs/elsewhere.md",
    )


def options(machine: Machine, path: str) -> list[str]:
    """What the file system that a folder is on is mounted with."""
    return of(machine, path)[1]


def of(machine: Machine, path: str) -> tuple[str, list[str], str]:
    """The device that a folder is on, what it is mounted with, and the kind of file system."""
    text = machine.read("/proc/self/mounts") or machine.read("/proc/mounts") or ""
    rows = [row.split() for row in text.splitlines()]
    mounts = [(row[1], row[0], row[3].split(","), row[2]) for row in rows if len(row) > 3]
    real = machine.real(path)
    above = [m for m in mounts if f"{real}/".startswith(f"{m[0].rstrip('/')}/")]
    return max(above, key=lambda mount: len(mount[0]))[1:] if above else ("", [], "")
