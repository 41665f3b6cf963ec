"""File servers that do not answer, as far as the kernel's log tells."""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host import kernel
from host.machine import Machine

_LATE, _QUIET = 900.0, 2 * 86400.0  # seconds
_LUSTRE = re.compile(
    r"(?:client was (evicted) by|Connection to) (\S+?-\w+)(?:;| \(at \S+\) was (lost)\b)"
)


def silent(machine: Machine, said: list[str]) -> Finding | None:
    """The last word on each counts; on some it is said only that they are gone."""
    away: dict[str, str] = {}
    for row in said:
        told = re.search(r"nfs: server (\S+) (not responding(?:, timed out)?|OK)", row)
        if told and told.group(2) == "OK":
            away.pop(told.group(1), None)
        elif told and (told.group(2) == "not responding" or is_late(machine, row, said)):
            away[told.group(1)] = f"the file server {told.group(1)} does not answer (NFS)"
        windows = re.search(r"CIFS:? VFS: (?:Server )?(\S+) has not responded in", row)
        if windows and is_late(machine, row, said):
            away[windows.group(1)] = f"the file server {windows.group(1)} does not answer (SMB)"
        ceph = re.search(r"ceph: (?:\[[^]]*\]: ?)?(mds\d+) (hung|reconnect denied|\w+ )", row)
        if ceph and ceph.group(2) in ("hung", "reconnect denied"):
            how = "does not answer" if ceph.group(2) == "hung" else "has put this machine out"
            away[ceph.group(1)] = f"the file server {ceph.group(1)} {how} (CephFS)"
        elif "ceph: auto reconnect after blocklisted" in row:
            away = {name: told for name, told in away.items() if "CephFS" not in told}
        elif ceph:
            away.pop(ceph.group(1), None)  # caps stale, came back, recovery completed
        if "Lustre" not in row:
            continue
        again = re.search(r"Connection restored to (\S+?)(?= |,|;|$)", row) or re.search(
            r"setting import (\S+?)_UUID INACTIVE by administrator", row
        )
        if again:
            # Older ones name an address there, and the target at the line's start.
            target = re.search(r"(\S+)-(?:osc|mdc)-", row)
            for name in (again.group(1), target.group(1) if target else ""):
                away.pop(name, None)
            continue
        lost = _LUSTRE.search(row)
        if lost:
            how = "has put this machine out" if lost.group(1) else "does not answer"
            away[lost.group(2)] = f"the file server {lost.group(2)} {how} (Lustre)"
    mounts = machine.read("/proc/mounts")
    away = {name: told for name, told in away.items() if _is_mounted(name, told, mounts)}
    if not away:
        return None
    return warn(
        "kernel log",
        list(away.values())[-1],
        "what reads or saves there hangs or fails, a training as well",
        "ask whoever runs it; until then keep data and runs/ on a disk of this machine",
    )


def _is_mounted(name: str, told: str, mounts: str | None) -> bool:
    """Whether something comes from a file server of this kind, as far as that is known."""
    kind_of = re.search(r"\((Lustre|CephFS)\)", told)
    if mounts is not None and kind_of:
        return {"Lustre": " lustre ", "CephFS": " ceph "}[kind_of.group(1)] in mounts
    if mounts is None or not re.search(r"\((?:NFS|SMB)\)", told):
        return True
    server = re.escape(name.strip("\\").split("\\")[0])
    return re.search(rf"(?m)(?:^|[/,=]){server}(?:[:/,\s]|$)", mounts) is not None


def is_late(machine: Machine, row: str, said: list[str]) -> bool:
    """Whether a row is of the log's last minutes, and not of days ago."""
    first, last = (kernel.TIME.search(each) for each in (row, said[-1]))
    if first is None or last is None:
        return True
    since = float(last.group(1)) - float(first.group(1))
    return since < _LATE and (machine.uptime() or 0.0) - float(last.group(1)) < _QUIET
