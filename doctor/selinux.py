"""What SELinux keeps from containers."""

from __future__ import annotations

import re

from doctor import log
from host import apps
from host.machine import Machine

_DENIED = re.compile(
    r'avc:\s+denied\s+\{ ([a-z_ ]+) \}.*(?:path|name)="(?:/dev/)?(nvidia[\w-]*)".*:container\w*_t:'
)
_OURS = re.compile(rf'comm="(?:{apps.TRAINER})')
_UNSHARED = re.compile(r"tcontext=\S{1,99}:(user_home|home_root|default)\w{0,20}_t")
_SWITCHES = ("container_use_devices", "container_use_xserver_devices")


def _audited(machine: Machine) -> list[str]:
    """What was refused since the machine was started: what was before it may be mended since."""
    begun = re.search(r"(?m)^btime (\d{1,12})$", machine.read("/proc/stat") or "")
    rows = machine.run("ausearch", "-m", "avc").out.splitlines()
    if not rows:  # root's to ask; the journal has them as well
        own = ("-b", "-q", "--no-pager", "_TRANSPORT=audit")
        return machine.run("journalctl", *own).out.splitlines()
    times = [re.search(r"audit\((\d{1,12})\.", row) for row in rows]
    return [r for r, x in zip(rows, times) if not (begun and x and int(x[1]) < int(begun[1]))]


def denied(machine: Machine) -> tuple[str, str] | None:
    """What it keeps containers from, and what helps; None where it does not."""
    if (machine.read("/sys/fs/selinux/enforce") or "").strip() != "1":
        return None
    audit = _audited(machine)
    rows = [row for row in (*(log.lines(machine) or []), *audit) if "permissive=1" not in row]
    found = [x for x in map(_DENIED.search, rows) if x]
    if not found:
        return _mislabelled(machine)
    # The second lets them be mapped as well, where their type is the X server's.
    known = machine.run("getsebool", _SWITCHES[1])
    xserver = "xserver_misc_device_t" in found[-1].string and known.code == 0 and known.out
    mapped = "map" in found[-1].group(1).split()
    needed = _SWITCHES[1 if xserver or mapped else 0]
    if _is_on(machine, needed) or (not mapped and any(_is_on(machine, n) for n in _SWITCHES)):
        return None
    return (
        f"SELinux denies containers {found[-1].group(1)} of /dev/{found[-1].group(2)}",
        f"sudo setsebool -P {needed} 1"
        + " (container-selinux 2.232 or newer)" * (needed == _SWITCHES[1])
        + "; or for one container: --security-opt label=disable",
    )


def unshared(machine: Machine) -> tuple[str, str] | None:
    """Files of a home that were mounted into a container, without a label for containers."""
    if (machine.read("/sys/fs/selinux/enforce") or "").strip() != "1":
        return None
    audit = _audited(machine)
    refused = [
        found
        for row in (*(log.lines(machine) or []), *audit)
        if "denied" in row and "permissive=0" in row and ":container" in row and _OURS.search(row)
        if (found := _UNSHARED.search(row))
    ]
    if not refused:
        return None
    where = "of the system's" if refused[-1].group(1) == "default" else "of a home"
    return (
        f"SELinux denies a container files {where} that were mounted into it",
        (
            "start it with --security-opt label=disable; or keep them in a folder of their own,"
            " never a whole home, and mount that with a label: -v FOLDER:/data:z"
        ),
    )


def _mislabelled(machine: Machine) -> tuple[str, str] | None:
    """The devices have the label of any device, which containers may not use."""
    if "object_r:device_t:" not in machine.run("ls", "-Z", "/dev/nvidia0").out:
        return None
    return (
        "/dev/nvidia0 has SELinux's label of any device (device_t)",
        "sudo restorecon -v /dev/nvidia*; at each boot: by a rule of udev or a unit",
    )


def _is_on(machine: Machine, name: str) -> bool:
    return machine.run("getsebool", name).out.split()[-1:] == ["on"]
