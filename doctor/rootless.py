"""What keeps Podman from starting containers for whoever is not root."""

from __future__ import annotations

import re

from doctor import batch, kind, mounts
from doctor.finding import Finding, warn
from host.machine import Machine

_IDS = ("/etc/subuid", "/etc/subgid")


def barred(machine: Machine) -> Finding | None:
    """Podman's own documents: https://github.com/containers/podman/blob/main/troubleshooting.md"""
    if kind.user(machine) in ("", "0"):
        return None
    return (
        batch.without_namespaces(machine, "rootless Podman")
        or _without_ids(machine)
        or _unmapped(machine)
        or _far_away(machine)
    )


def _without_ids(machine: Machine) -> Finding | None:
    """This user has no range of IDs for what is in a container."""
    name, number = machine.run("id", "-un").out.strip(), kind.user(machine)
    named = re.search(r"^subid:\s*(.*)$", machine.read("/etc/nsswitch.conf") or "", re.MULTILINE)
    if not re.fullmatch(r"[\w.@-]+", name) or (named and named.group(1).split() != ["files"]):
        return None
    # Others' names are not read: a record would have them.
    counted = [machine.run("grep", "-cE", f"^({name}|{number}):", path) for path in _IDS]
    if not any(answer.code == 1 and answer.out.strip() == "0" for answer in counted):
        return None
    return warn(
        "toolkit",
        "this user has no range of IDs in /etc/subuid and /etc/subgid",
        "Podman unpacks no image: there might not be enough IDs available in the namespace",
        f"sudo usermod --add-subuids FIRST-LAST --add-subgids FIRST-LAST {name}, 65,536 numbers"
        " that no other row of these two files has; then podman system migrate",
    )


def _unmapped(machine: Machine) -> Finding | None:
    """The program that gives it its range of IDs is not there, or may not.

    https://github.com/containers/podman/issues/2788
    """
    said = machine.run("podman", "info", "--format", "{{.Store.GraphRoot}}").said
    if not re.search(r"newuidmap: write to uid_map failed|\"newuidmap\": executable file", said):
        return None
    return warn(
        "toolkit",
        "rootless Podman does not start: newuidmap is not there, or may not map IDs",
        "it has lost its setuid bit or capability, as by a copied system",
        "sudo apt-get install --reinstall uidmap; Fedora, RHEL: sudo dnf reinstall shadow-utils",
    )


def _far_away(machine: Machine) -> Finding | None:
    """Images are kept on a file system of the network, on which no layers can be made."""
    root = machine.run("podman", "info", "--format", "{{.Store.GraphRoot}}").out.strip()
    place = mounts.kind_of(machine, root) if root.startswith("/") else ""
    if place not in mounts.FAR:
        return None
    return warn(
        "toolkit",
        f"Podman keeps its images on {place}",
        "layers cannot be made there: lsetxattr, operation not supported",
        "podman system reset (which removes this user's images and containers); then graphroot= a"
        " new, empty folder of a local disk, in ~/.config/containers/storage.conf",
    )
