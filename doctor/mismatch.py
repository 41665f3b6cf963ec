"""The driver's library and the kernel's module are of two versions."""

from __future__ import annotations

import re

from doctor import distribution, kind
from doctor.finding import Finding, fail
from host import limits, nvidia
from host.machine import Answer, Machine

_REBOOT = "sudo reboot"
_CPU = "or train on the CPU: CPUS=1"
_APART = (
    "they were upgraded apart, or installed from two sources",
    (
        "have both of one version: upgrade or downgrade the driver's packages (a reboot alone"
        " changes nothing), and keep one source alone (sudo nvidia-uninstall takes away what a .run"
        " file brought)"
    ),
)
_IN_IMAGE = (
    "the system's image has the two of different versions",
    "rpm-ostree rollback; or rpm-ostree upgrade, once a newer image has both of one version",
)

_SYSTEMS = ("/usr/lib", "/lib", "/usr/local/nvidia", "/run/opengl-driver")
# Where clouds put the host's libraries into notebooks and pods.
_GIVEN = ("/usr/lib64-nvidia", "/usr/local/nvidia/lib64")


def found(machine: Machine, answer: Answer) -> Finding | None:
    """Library and module are of two versions."""
    if "version mismatch" not in answer.said:
        return None
    told = re.search(r"NVML library version: ([\d.]+)", answer.said)
    library = told.group(1) if told else "of another version"
    loaded = nvidia.loaded(machine) or "another"
    if kind.is_lxc(machine):
        return _in_lxc(machine, library, loaded)
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    # One that somebody has put there; what helps with a system's own is said below.
    paths = [p for p in paths if p.startswith("/") and not p.startswith(_SYSTEMS)]
    given = next((p for p in paths if f"libnvidia-ml.so.{library}" in machine.names(p)), None)
    if given is not None and loaded != "another":
        return fail(
            "driver",
            f"kernel module {loaded}, and LD_LIBRARY_PATH has {given}, with a library of {library}",
            "programs load that one: nothing starts on a GPU",
            f"take {given} out of LD_LIBRARY_PATH"
            + " (NixOS: /run/opengl-driver/lib in its place; Nix elsewhere: nixGL)"
            * given.startswith("/nix/"),
        )
    if limits.in_container(machine.root):
        return _in_container(machine, library if told else "", loaded)
    if loaded == nvidia.on_disk(machine) and "nixos" not in distribution.names(machine):
        why, fix = _IN_IMAGE if machine.has("rpm-ostree") else _APART
        seen = f"library {library}, kernel module {loaded}, the same on the disk"
        return fail("driver", seen, why, f"{fix}; then {_REBOOT}; {_CPU}")
    seen = f"library {library if told else 'new'}, kernel module {loaded}"
    first = distribution.initramfs(machine)
    why = "the driver was upgraded and the old module is still loaded: nothing starts on a GPU"
    fix = (
        f"{_REBOOT}   # {_CPU}; where it comes back, first sudo {first}: the old module is in the"
        " initramfs"
    )
    # Where the module on the disk is the library's, an older driver was installed.
    beside = (nvidia.on_disk(machine) or "").startswith(library)
    if told and _numbers(loaded) > _numbers(library) and not beside:
        why = "two drivers are installed: of one the module is loaded, of an older one the library"
        fix = (
            "remove one of them (dkms status and the installed packages tell which there are), then"
            f" {_REBOOT}; {_CPU}"
        )
    return fail("driver", seen, why, fix)


def _in_lxc(machine: Machine, library: str, loaded: str) -> Finding:
    """A container of LXC, whose libraries are its own or the host's."""
    mounts = machine.read("/proc/mounts") or ""
    if re.search(r"(?m)^\S+ \S*/libnvidia-ml\.so", mounts):
        return fail(
            "driver",
            f"the host's library, which is mounted here, is {library}, and its module {loaded}",
            "the host's driver was upgraded, and the old module is still loaded there",
            "reboot the host (Incus with nvidia.runtime=true hands over its files); nothing is to"
            " be installed in here",
        )
    return fail(
        "driver",
        f"this container's library is {_library(machine) or library}, the host's module {loaded}",
        "a container of LXC has libraries of its own, which must be of the host's version",
        f"in the container: sudo sh NVIDIA-Linux-*-{loaded}.run --no-kernel-modules (the host's"
        " own version; on a host of vGPU, its driver's)",
    )


def _in_container(machine: Machine, library: str, loaded: str) -> Finding:
    """A container's library, of which the version may be known, is not of the host's."""
    told = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    given = (folder for folder in _GIVEN if folder not in told)
    folder = next((f for f in given if f"libcuda.so.{loaded}" in machine.names(f)), None)
    if folder is not None:
        return fail(
            "driver",
            f"another library than the host's {loaded}, whose own are in {folder}",
            "this shell is not told where they are, as a notebook's programs are",
            f"export LD_LIBRARY_PATH={folder}",
        )
    branch = loaded.partition(".")[0]
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    both = [
        name.partition(".so.")[2]
        for folder in folders
        for name in machine.names(folder)
        if re.fullmatch(r"libnvidia-ml\.so\.\d{3}[\d.]+", name)
    ]
    # One that the host's is mounted beside.
    own = next((each for each in both if each != loaded), "") if loaded in both else ""
    other = branch.isdecimal() and library.partition(".")[0] != branch
    if own or (library and other):
        return fail(
            "driver",
            f"the library in this container is {own or library}, and the host's module {loaded}",
            "the image has driver libraries of its own, which hide the host's",
            "take nvidia-utils and libnvidia-* out of the image (the toolkit brings the"
            " host's), or take another image",
        )
    return fail(
        "driver",
        "the library in this container is not of the kernel module's version",
        "the driver was upgraded after the container was started",
        "start the container anew; if it comes back, reboot the host",
    )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _library(machine: Machine) -> str | None:
    """The whole version of the driver's library."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        for name in machine.names(folder):
            told = re.fullmatch(r"libnvidia-ml\.so\.(\d{3}[\d.]*)", name)
            if told:
                return told.group(1)
    return None
