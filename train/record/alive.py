"""A sign of life beside a lock, where locks do not reach other machines.

sshfs, bindfs, mergerfs and gocryptfs, and NFS that is mounted with nolock or local_lock, let two
machines, or two mounts, have the same lock. There the writer rewrites a small file every two
seconds, and who wants to write looks first whether it changes. No clocks are compared.
"""

import json
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from host import regular
from host.errors import HostError
from host.text import printable
from train.process import outcome

NAME = ".alive"
BEAT = 2.0
"""Seconds from one sign of life to the next."""
QUIET = 12.0
"""Seconds without one after which a writer is dead."""
# One kernel sees all that happens on these, so its locks hold.
_LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"),
    *("ramfs", "vfat", "exfat", "ntfs3", "apfs", "hfs"),
}
_LENGTH = 1024  # bytes of the file; it keeps its length, which network file systems cache


def needed(folder: Path) -> bool:
    """Whether `folder` is on a file system that other machines may write."""
    where, kind = folder.resolve(), ""
    longest = -1
    for mount in psutil.disk_partitions(all=True):
        parts = len(Path(mount.mountpoint).parts)
        if parts >= longest and where.is_relative_to(mount.mountpoint):
            longest, kind = parts, mount.fstype
    return kind not in _LOCAL


def wait(folder: Path, deadline: float) -> str | None:
    """Wait until nobody writes `folder`.

    Args:
        deadline: on `time.monotonic`'s clock, when a writer that lives is waited for no longer.

    Returns:
        The writer that lives, for people; None where there is none.

    Raises:
        HostError: it cannot be found out.
    """
    try:
        return _wait(folder, deadline)
    except OSError as error:
        raise HostError(
            f"cannot read {folder / NAME}: {error.strerror}", "choose another --run"
        ) from error


def _wait(folder: Path, deadline: float) -> str | None:
    seen, since, said = _read(folder), time.monotonic(), False
    while seen is not None and not _died_here(seen):
        time.sleep(BEAT / 4)
        text, now = _read(folder), time.monotonic()
        if text != seen:
            if text is not None and now > deadline:
                return _who(text)
            seen, since = text, now
        elif now - since > QUIET:
            break
        elif not said and now - since > BEAT * 2:
            said = True
            what = f"{folder} was written by {_who(seen)}: looking for {QUIET:.0f} s whether it is"
            print(printable(f"{what} still"), file=sys.stderr, flush=True)
    return None


@contextmanager
def shown(folder: Path) -> Iterator[None]:
    """Show for as long as the block lasts that this process writes `folder`.

    The process ends with HostError's code where another one has taken it.
    """
    writer = _Writer(folder)
    writer.show()
    writer.thread.start()
    try:
        yield
    finally:
        writer.end()


def lately(folder: Path) -> bool:
    """Whether a process seems to write `folder`, at a look: by clocks, which may differ."""
    with suppress(OSError):
        text = _read(folder)
        if text is None or _died_here(text):
            return False
        return abs(time.time() - (folder / NAME).stat().st_mtime) < QUIET
    return False


class _Writer:
    """A thread that shows that this process lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.token, self.count = secrets.token_hex(8), 0
        self.since = datetime.now().isoformat(sep=" ", timespec="seconds")
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def show(self) -> None:
        """Write another sign of life; a disk that fails now may do better in two seconds."""
        self.count += 1
        about = {
            "pid": os.getpid(),
            "host": platform.node(),
            "since": self.since,
            "kernel": _kernel(),
            "token": self.token,
            "count": f"{self.count:010d}",
        }
        with suppress(OSError):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(handle, json.dumps(about).encode().ljust(_LENGTH), 0)
            finally:
                os.close(handle)  # which sends it to the machine that holds the disk

    def end(self) -> None:
        """Take it away."""
        self.done.set()
        self.thread.join(timeout=BEAT)  # a disk that hangs is not waited for
        with suppress(OSError):
            if self._ours():
                self.path.unlink(missing_ok=True)

    def _ours(self) -> bool:
        text = _read(self.folder)
        return text is not None and _about(text).get("token") == self.token

    def _run(self) -> None:
        while not self.done.wait(BEAT):
            try:
                self.folder.stat()
                ours = self._ours()
            except OSError:  # the disk is away
                continue
            if not ours and not self.done.is_set():
                self._lost()
            self.show()

    def _lost(self) -> None:
        """End this process before it writes among another one's files."""
        text = None
        with suppress(OSError):
            text = _read(self.folder)
        who = f"{_who(text)} writes it" if text else f"{self.path} was removed"
        error = HostError(
            f"{self.folder} is no longer this process's: {who}",
            "see that one training at a time writes it, then add --resume",
            one_rank=True,
        )
        print(error.line(), file=sys.stderr, flush=True)
        outcome.ended(error)
        os._exit(error.code)


def _read(folder: Path) -> str | None:
    """What is there now; each look opens the file, since that is when NFS asks its server."""
    try:
        return regular.read(folder / NAME, _LENGTH * 4).decode(errors="replace")
    except FileNotFoundError:
        return None


def _about(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _who(text: str) -> str:
    about = _about(text)
    if not {"pid", "host", "since"} <= about.keys():
        return "another process"
    return f"process {about['pid']} on {about['host']} since {about['since']}"


def _died_here(text: str) -> bool:
    """Whether it was a process of this kernel that is gone."""
    about = _about(text)
    pid = about.get("pid")
    here = about.get("kernel") == _kernel() and isinstance(pid, int)
    return here and not psutil.pid_exists(pid)


def _kernel() -> str:
    """What tells this kernel's processes from those of others: its boot, and our PID namespace."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return secrets.token_hex(8)  # like no other
