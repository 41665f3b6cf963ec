"""The machine's memory, as the kernel counts it (/proc/meminfo)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/")


def total(root: Path = ROOT) -> int | None:
    """Bytes of the machine's memory."""
    return row(root, "MemTotal")


def free(root: Path = ROOT) -> int | None:
    """Bytes of the machine's memory that programs can still have without swapping."""
    available = row(root, "MemAvailable")
    return None if available is None else available + cached_by_zfs(root)


def cached_by_zfs(root: Path = ROOT) -> int:
    """Bytes of ZFS's cache above its least, which the kernel counts as taken, and gets back."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        text = (root / "proc/spl/kstat/zfs/arcstats").read_text()
        rows = {row.split()[0]: row.split()[-1] for row in text.splitlines() if row.split()}
        return max(0, int(rows["size"]) - int(rows["c_min"]))
    return 0


def swapped(root: Path = ROOT) -> int:
    """Bytes that are swapped out."""
    most, left = row(root, "SwapTotal"), row(root, "SwapFree")
    return 0 if most is None or left is None else max(0, most - left)


def huge_free(root: Path = ROOT) -> int:
    """Bytes that are set aside as huge pages, and that nobody uses or has reserved."""
    folder, unused = root / "sys/kernel/mm/hugepages", 0
    for kilobytes in (2048, 1048576):
        with suppress(OSError, ValueError):
            place = folder / f"hugepages-{kilobytes}kB"
            pages = int((place / "free_hugepages").read_text())
            with suppress(OSError, ValueError):
                pages -= int((place / "resv_hugepages").read_text())
            unused += max(0, pages) * kilobytes * 1024
    if unused:
        return unused
    size, left, reserved = (
        row(root, name) for name in ("Hugepagesize", "HugePages_Free", "HugePages_Rsvd")
    )
    # In kB, as all but the counts.
    return 0 if size is None or left is None else size * (max(0, left - (reserved or 0)) // 1024)


def row(root: Path, name: str) -> int | None:
    """Bytes of one row, or a count of pages in KiB; None where there is none."""
    with suppress(OSError, StopIteration, ValueError, IndexError):
        rows = (root / "proc/meminfo").read_text().splitlines()
        return next(int(row.split()[1]) * 1024 for row in rows if row.startswith(f"{name}:"))
    return None
