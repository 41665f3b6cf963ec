"""Why Fedora's builder of modules has made none for the kernel that runs."""

from __future__ import annotations

import re

from doctor import building, makelog
from host import nvidia
from host.machine import Machine

_AKMODS = "/var/cache/akmods"


def unbuilt(machine: Machine, taken: bool, headers: str) -> tuple[str, str, str] | None:
    """Why Fedora's builder has made no module for the kernel that runs: seen, why, fix.

    Args:
        taken: whether an open driver has the card in its place.
        headers: how the files are installed that modules are built with, and it is built.
    """
    failed = _failed(machine)
    log = machine.read(failed[-1]) or "" if failed else ""
    # With a version behind some of them; headers have rules of their own.
    needed = sorted({*re.findall(r"(\S+)(?: [<>=]+ \S+)? is needed by nvidia\S*kmod", log)})
    needed = [name for name in needed if not name.startswith("kernel")]
    if needed:
        return (
            f"its module could not be built without {', '.join(needed)}",
            f"says {failed[-1]}",
            f"sudo dnf install {' '.join(needed)} && sudo akmods --force && sudo reboot",
        )
    mixed = _of_two_sources(machine, failed[-1], log) if failed else None
    again = "sudo akmods --force && sudo reboot"
    lacking = makelog.lacking(log, "akmods", again) if failed else None
    if mixed is not None or lacking is not None:
        return mixed or lacking
    if failed:
        return (
            f"its module could not be built: {failed[-1].rpartition('/')[2]}",
            "the driver is older than this kernel: another one holds the GPU, or none",
            (
                "sudo dnf upgrade --refresh 'akmod-nvidia*'; sudo akmods --force && sudo reboot; or"
                " boot the kernel before"
            ),
        )
    kmods = machine.names("/usr/src/akmods")
    here = any(re.match(building.KMOD, name) for name in kmods)
    if not taken or not here or nvidia.on_disk(machine):
        return None
    seen = "NVIDIA's package is installed, and its module not built: an open driver has the card"
    other = building.having(machine)
    if other is not None and not building.has_headers(machine):
        return (
            seen,
            "this kernel's headers are not installed, and nothing is built without them",
            f"{headers}; where it does not build: boot {other}, or a driver for this kernel",
        )
    return (
        seen,
        "the machine was started before akmods had built it",
        "sudo akmods --force && sudo reboot, once it is done",
    )


def _of_two_sources(machine: Machine, file: str, log: str) -> tuple[str, str, str] | None:
    """The package that builds the module is of another release than the driver: seen, why, fix."""
    release = re.match(r"(\d+\.[\d.]*\d)-", file.rpartition("/")[2])
    lacks = re.search(r"nothing provides nvidia-kmod-common", log)
    found = [re.fullmatch(r"libcuda\.so\.(\d+\.[\d.]+)", n) for n in machine.names("/usr/lib64")]
    own = next((each.group(1) for each in found if each), None)
    if release is None or own is None or (own == release.group(1) and not lacks):
        return None
    if not any(release.group(1) in name for name in machine.names("/usr/src/akmods")):
        return None  # of a package that was here before
    return (
        f"akmods builds the module of {release.group(1)}, and the driver here is {own}",
        "packages of two repositories are mixed (RPM Fusion, negativo17, NVIDIA's own)",
        (
            "keep one of them: dnf repolist, and for each of the others sudo dnf config-manager"
            " setopt NAME.enabled=0 (before Fedora 41: --set-disabled NAME); then sudo dnf"
            " distro-sync 'akmod-nvidia*' '*nvidia*', sudo akmods --force, and reboot"
        ),
    )


def _failed(machine: Machine) -> list[str]:
    """Logs of attempts to build the module for the kernel that runs."""
    release = building.kernel(machine)
    folders = [f"{_AKMODS}/{n}" for n in machine.names(_AKMODS) if n.startswith("nvidia")]
    names = [f"{folder}/{name}" for folder in folders for name in machine.names(folder)]
    return [n for n in names if n.endswith("failed.log") and release and release in n]
