"""What SELinux keeps from containers."""

from __future__ import annotations

import re

from doctor import log
from host.machine import Machine

_DENIED = re.compile(
    r'avc:\s+denied\s+\{ ([a-z_ ]+) \}.*(?:path|name)="(?:/dev/)?(nvidia[\w-]*)".*:container\w*_t:'
)
_OF_HOME = re.compile(
    r"avc:\s+denied\s+\{.*comm=.(?:python|pt_|torchrun|accelerate).*scontext=\S*:container\w*_t:.*tcontext=\S*:(?:user_home|home_root|default)\w*_t"
    r".*permissive=0"
)
_SWITCHES = ("container_use_devices", "container_use_xserver_devices")


def denied(machine: Machine) -> tuple[str, str] | None:
    """What it keeps containers from, and what helps; None where it does not."""
    if (machine.read("/sys/fs/selinux/enforce") or "").strip() != "1":
        return None
    audit = machine.run("ausearch", "-m", "avc").out.splitlines()
    found = [x for x in map(_DENIED.search, [*(log.lines(machine) or []), *audit]) if x]
    if not found:
        return _mislabelled(machine)
    # The second lets them be mapped as well, where their type is the X server's.
    needed = _SWITCHES[1 if "map" in found[-1].group(1).split() else 0]
    if _is_on(machine, needed):
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
    audit = machine.run("ausearch", "-m", "avc", "-ts", "boot").out.splitlines()
    rows = [*(log.lines(machine) or []), *audit]
    refused = [row for row in rows if _OF_HOME.search(row)]
    name = re.search(r'(?:path|name)="([^"]{1,80})"', refused[-1]) if refused else None
    if not refused:
        return None
    return (
        f"SELinux denies containers what was mounted into them of a home{_named(name)}",
        (
            "mount it with a label: -v FOLDER:/data:z, and :Z where one container alone has it; or"
            " for one container: --security-opt label=disable"
        ),
    )


def _named(found: re.Match[str] | None) -> str:
    return f": {found.group(1)}" if found else ""


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
