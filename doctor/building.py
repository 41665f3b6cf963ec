"""What those say that build NVIDIA's module for a kernel, where they could not."""

from __future__ import annotations

import re

from doctor import makelog
from host.machine import Machine

# Debian's are nvidia-current-535…, nvidia-tesla-…; nvidia-fs is no driver.
_SOURCES = re.compile(r"nvidia-((current|tesla|open|srv)[\w-]*-)?\d")
KMOD = r"nvidia(?:-open)?(?:-\d+xx)?-kmod"  # old cards have a branch of their own
_LISTED = re.compile(r"(?m)^\S*/nvidia(?:-current)?\.ko")
_FEW = 4
_FAILED = r'was not created|performing the step: "[^"]*module was successfully built"'


def broken(machine: Machine) -> tuple[str, str, str] | None:
    """What those say who could not build the module, DKMS or NVIDIA's installer: seen, why, fix."""
    status = machine.run("dkms", "status")
    stopped = re.search(
        r"(/var/lib/dkms/nvidia[\w-]{0,40}/\w[\w.-]{0,40})/source/dkms\.conf does not exist",
        status.said,
    )
    newer = re.search(r"(?m)^(nvidia[\w-]{0,40})/(\d[\w.-]{0,40}): broken", status.out)
    entry = stopped.group(1) if stopped else ""
    entry = "/var/lib/dkms/" + "/".join(newer.groups()) if newer else entry
    if entry:
        return (
            f"DKMS stops at {entry}, of which the sources are gone",
            "it builds no module for new kernels any more",
            f"sudo rm -rf {entry}; sudo dkms autoinstall && sudo modprobe nvidia",
        )
    for name in machine.names("/var/lib/dkms"):
        # Debian's is nvidia-current, or nvidia-tesla-470.
        for version in machine.names(f"/var/lib/dkms/{name}") if name.startswith("nvidia") else []:
            path = f"/var/lib/dkms/{name}/{version}/build/make.log"
            found = makelog.read(
                machine.read(path) or "", "DKMS", version, path, having(machine) or ""
            )
            if found is not None:
                return found
    path = "/var/log/nvidia-installer.log"
    said = machine.read(path) or ""
    running = kernel(machine)
    release = re.search(r"(?:installer version: |NVIDIA-Linux-\w+-)(\d[\d.]*\d)", said)
    # What it says of an older kernel says nothing of the one that runs.
    here = any(f"/{place}{running}/" in said for place in ("lib/modules/", "linux-headers-"))
    # Debian's kernels of one release have most of their headers in common.
    common = re.match(r"\d+\.\d+\.\d+-\d+", running)
    here = here or (common is not None and f"linux-headers-{common.group()}-common/" in said)
    alone = here and re.search(_FAILED, said) and "is now complete" not in said
    if not running or not (alone or re.search(rf"Failed to run .*-k {re.escape(running)}\b", said)):
        return None
    return makelog.read(said, "NVIDIA's installer", release.group(1) if release else "", path)


def without_others(machine: Machine) -> tuple[str, str, str] | None:
    """A module of the kernel's that NVIDIA's hang on is not here: seen, why, fix.

    https://github.com/NVIDIA/gpu-driver-container/pull/302
    """
    needed = machine.run("modinfo", "-F", "depends", "nvidia-modeset")
    for name in needed.out.strip().split(",") if needed.code == 0 else []:
        said = machine.run("modinfo", "-F", "filename", name)
        if name and not name.startswith("nvidia") and said.code == 1 and "not found" in said.err:
            return (
                f"it needs the module {name}, which is not installed",
                "the kernel's own modules are in several packages, and one is missing",
                (
                    "sudo dnf install kernel-modules-$(uname -r) kernel-modules-extra-$(uname -r)"
                    " (Ubuntu: linux-modules-extra-$(uname -r)) && sudo modprobe nvidia-drm"
                ),
            )
    return None


def without_headers(machine: Machine) -> str | None:
    """What builds NVIDIA's module here once the kernel that runs has the files for it, which it has
    not; None: it has them, or nothing is to be built.
    """
    running = kernel(machine)
    there = machine.names(f"/lib/modules/{running}") if running else []
    if not there or has_headers(machine):
        return None
    sources = machine.names("/usr/src")
    if machine.has("dkms") and any(_SOURCES.match(name) for name in sources):
        return "sudo dkms autoinstall"
    kmods = machine.names("/usr/src/akmods")
    return "sudo akmods --force" if any(re.match(KMOD, n) for n in kmods) else None


def has_headers(machine: Machine) -> bool:
    """Whether what modules are built against is here for the kernel that runs."""
    running = kernel(machine)
    if not running:
        return False
    if machine.exists(f"/lib/modules/{running}/build"):  # not a link to what is not installed
        return True
    sources = machine.names("/usr/src") + machine.names("/usr/src/kernels")
    kinds = ("", "linux-headers-", "kernel-headers-", "kernel-devel-")
    return any(f"{kind}{running}" in sources for kind in kinds)


def kernel(machine: Machine) -> str:
    """The kernel that runs; empty where that was cut or damaged."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    return running if re.fullmatch(r"[\w.+~-]+", running, re.ASCII) else ""


def _version(kernel: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]{1,9}", kernel)]


def by_dkms(machine: Machine) -> str | None:
    """Another kernel that DKMS has built the module for, where there is none for this one."""
    running = kernel(machine)
    said = machine.run("dkms", "status").out
    built = re.findall(
        r"^nvidia[^,:]*[,/] ?[^,:]+, ([^,:]+), [^,:]+: installed", said, re.MULTILINE
    )
    return None if running in built or not built or not running else max(built, key=_version)


def elsewhere(machine: Machine) -> str | None:
    """Another kernel that has NVIDIA's module: this one has none, and nobody would build it."""
    return None if is_by_dkms(machine) else having(machine)


def nowhere(machine: Machine) -> bool:
    """Whether no kernel has NVIDIA's module."""
    return not _kernels(machine)


def is_built_here(machine: Machine) -> str | None:
    """The driver that DKMS has built for the kernel that runs, by its name: nvidia/550.144.03."""
    running = re.escape(kernel(machine) or "-")
    said = machine.run("dkms", "status").out
    found = re.search(rf"(?m)^(nvidia[\w-]*)[/, ]+([\d.]+), {running}, \w+: installed", said)
    return "/".join(found.groups()) if found else None


def is_by_dkms(machine: Machine) -> bool:
    """Whether DKMS builds NVIDIA's module, and not others' alone."""
    names = (*machine.names("/var/lib/dkms"), machine.run("dkms", "status").out.strip())
    return any(re.search(r"(?m)^nvidia(?!-fs|-peermem)", name) for name in names)


def ubuntu_branch(machine: Machine, kernel: str) -> str | None:
    """The branch whose modules Ubuntu's packages bring for a kernel, such as 535-server."""
    found = _of_ubuntu(machine, kernel)
    return found[0].replace("kernel/nvidia-", "").replace("srv", "-server") if found else None


def _of_ubuntu(machine: Machine, kernel: str) -> list[str]:
    """Folders of a kernel that Ubuntu's packages put NVIDIA's modules into."""
    names = machine.names(f"/lib/modules/{kernel}/kernel")
    return [f"kernel/{name}" for name in names if re.match(r"nvidia-\d", name)]


def having(machine: Machine) -> str | None:
    """Another kernel that has NVIDIA's module, where this one has none."""
    running, found = kernel(machine), _kernels(machine)
    return None if running in found or not found else max(found, key=_version)


def _kernels(machine: Machine) -> list[str]:
    """The kernels that have NVIDIA's module; none where it is not known which one runs."""
    places = (
        *("kernel/drivers/video", "kernel/drivers/video/nvidia", "updates/dkms", "updates"),
        *("extra", "extra/nvidia", "extra/drivers/video/nvidia", "weak-updates/nvidia"),
        *("video", "misc", "extramodules"),
    )
    if not kernel(machine):
        return []
    kernels = machine.names("/lib/modules")
    found = [
        name
        for name in kernels
        for place in (*places, *_of_ubuntu(machine, name))
        if any(
            n.startswith(("nvidia.ko", "nvidia-current.ko"))
            for n in machine.names(f"/lib/modules/{name}/{place}")
        )
    ]
    # Elsewhere it may lie anywhere: depmod's list knows, and is long.
    lists = (() if found else kernels) if len(kernels) <= _FEW else ()
    listed = ((name, machine.read(f"/lib/modules/{name}/modules.dep") or "") for name in lists)
    return found or [name for name, text in listed if _LISTED.search(text)]
