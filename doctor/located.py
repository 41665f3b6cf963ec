"""Where the NVIDIA Container Toolkit looks for the driver's libraries, and does not find them."""

from __future__ import annotations

import re

from doctor import configured, distribution, toolkit
from doctor.configured import CONFIG
from host.machine import Machine


def found(machine: Machine) -> tuple[str, str]:
    """Why the toolkit does not find libnvidia-ml, which the host has, and what helps."""
    if _is_ldconfig_inside(machine):
        return (
            "the toolkit runs the container's ldconfig: its path in config.toml has no @ in front",
            f"{configured.SET}.ldconfig=@{configured.ldconfig(machine)}",
        )
    root = without_root(machine)
    if root is not None:
        return root
    if toolkit.is_snap(machine):
        return "Docker is a snap here, which does not see the driver's libraries", toolkit.NO_SNAP
    why = "the toolkit does not find the driver's libraries on the host"
    if machine.has("nvidia-ctk"):
        return why, "sudo ldconfig"
    # Toolkits before 1.10: https://github.com/jellyfin/jellyfin/issues/2722
    newer = distribution.of(machine, distribution.TOOLKIT, distribution.APT_NEWER_TOOLKIT)
    return (
        f"{why}, or an old one does not tell the container of them",
        (
            f"sudo ldconfig; else a newer toolkit: {newer}; or with this one ldconfig = "
            f'"/sbin/ldconfig" in {CONFIG}, without the @'
        ),
    )


def without_root(machine: Machine) -> tuple[str, str] | None:
    """It is told to look for the driver in a folder that is not there: why, what helps."""
    file = configured.file(machine)
    root = re.search(r'^\s*root\s*=\s*"(/[^"]+)"', configured.text(machine), re.MULTILINE)
    if root is None or machine.names(root.group(1)):
        return None
    return (
        f"the toolkit looks for the driver in {root.group(1)} ({file}), and it is not there",
        f"{configured.SET}.root=/"
        if file == CONFIG
        else f'in {file} root = "/" and ldconfig = "@{configured.ldconfig(machine)}"',
    )


def _is_ldconfig_inside(machine: Machine) -> bool:
    """Whether the toolkit is set to a path of ldconfig in the container."""
    said = configured.text(machine)
    return re.search(r'^\s*ldconfig\s*=\s*"/', said, re.MULTILINE) is not None
