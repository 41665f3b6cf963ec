"""What the kernel's log says of GPUs: https://docs.nvidia.com/deploy/xid-errors/.

/dev/kmsg is the log itself; who may not read it, or is in a container, has to ask for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from host.text import whole

LOG = Path("/dev/kmsg")
_RECORD = 1 << 13  # bytes; the kernel's own are shorter
TIME = re.compile(r"\[ *([0-9]{1,12}\.[0-9]{1,9})\]")  # seconds since the start
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-[^)]*)?\): (\d+),?\s*(.*)")
# Newer drivers say it on three lines, and without a number.
OFF = re.compile(
    r"NVIDIA GPU ([0-9a-fA-F:.]+)(?:(?!NVIDIA GPU).){0,300}?fallen off the bus", re.DOTALL
)
_WHO = re.compile(r"(pid='?[^,]*'?|name=[^,]*),\s*")
_LONGEST = 100


def gpu_error(within: float, log: Path = LOG) -> str | None:
    """The last thing that the driver said of a GPU's failure; None where nothing can be read.

    Args:
        within: seconds that it may be ago.
    """
    try:
        handle = os.open(str(log), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb", buffering=0) as file:
        lines = [line for record in _records(file) for line in record.splitlines()]
    return said(lines, time.monotonic() - within)


def _records(file: BinaryIO) -> Iterator[str]:
    """One a read: a file ends with nothing, the kernel's log with an error."""
    while True:
        try:
            record = file.read(_RECORD)
        except BrokenPipeError:  # it was overwritten before it was read; newer ones follow
            continue
        except OSError:
            return
        if not record:
            return
        yield record.decode(errors="replace")


def said(lines: list[str], since: float) -> str | None:
    """The last failure among a log's lines.

    Args:
        lines: as /dev/kmsg has them: level, number, microseconds since boot; the text.
        since: seconds since boot.
    """
    recent, found = [], None
    for line in lines:
        head, _, text = line.partition(";")
        fields = head.split(",")
        if len(fields) < 3 or (whole(fields[2]) or -1) / 1e6 < since:
            continue
        recent.append(text)
        seen = XID.search(text)
        if seen:
            words = _WHO.sub("", seen.group(3)).strip()[:_LONGEST]
            found = f"Xid {seen.group(2)} of GPU {seen.group(1)}" + (f": {words}" if words else "")
    off = None if found else OFF.search("\n".join(recent))
    return f"GPU {off.group(1)} has fallen off the bus" if off else found
