"""Why NVIDIA's module is not there for the kernel that runs."""

from __future__ import annotations

import re

from doctor import building, distribution, halfway, headers, log, unsigned
from doctor.finding import Finding, fail
from host import nvidia, pci
from host.machine import Machine

_OTHER_KERNEL = (
    r"nvidia(?!.peermem)[\w-]*: (?:version magic|Unknown symbol|disagrees about version of symbol)"
    r"|Invalid module format"
    r"|module nvidia\S*: \.gnu\.linkonce\.this_module section size must match"
    r"|module: nvidia\S*: Unknown rela relocation"
)


def examine(machine: Machine, on_bus: str) -> Finding:
    """There is a driver, and no module for this kernel, as far as can be seen."""
    build = distribution.build(machine, distribution.DKMS)
    boot, other = unsigned.secure_boot(machine), log.last(machine, _OTHER_KERNEL)
    # A kernel that wants signatures may lack the module all the same.
    refused = boot and nvidia.on_disk(machine)
    lacking = _ipmi(machine) or (None if other or refused else missing(machine))
    if lacking is not None:
        seen, why, build = lacking
        return fail("driver", f"{on_bus}; {seen}", why, f"{build}; {unsigned.CPU}")
    built = building.is_built_here(machine)
    if other and built is not None:
        return fail(
            "driver",
            f"{on_bus}; its module was built for another build of this kernel",
            "DKMS has one for it, and the kernel does not take it: headers of another build",
            "take the headers of the very build that runs, and build it again: "
            + headers.then(machine, f"sudo dkms install --force {built} && sudo modprobe nvidia")
            + f"; {unsigned.CPU}",
        )
    if other:
        seen = "its module is for another kernel"
        why = "the module was not upgraded with the kernel"
        return fail("driver", f"{on_bus}; {seen}", why, f"{build}   # {unsigned.CPU}")
    if boot:
        return unsigned.found(machine, on_bus)
    if _is_without(machine):
        command, _, note = distribution.install(machine).partition("   #")
        whole = distribution.is_image(machine) or "nixos" in distribution.names(machine)
        command += " && sudo reboot" * (not whole)
        note += ";" * bool(note)
        return fail(
            "driver",
            f"{on_bus}; nvidia-smi is here, and a module for no kernel",
            "programs and libraries alone (nvidia-utils) are no driver",
            f"{command}   #{note} {unsigned.CPU}",
        )
    return fail(
        "driver",
        f"{on_bus}; installed, and not loaded",
        "after a kernel upgrade its module may not have been built; else the kernel says why",
        f"sudo modprobe nvidia; sudo dmesg | tail; {build}   # {unsigned.CPU}",
    )


def _is_without(machine: Machine) -> bool:
    """Whether no kernel has a module of NVIDIA's, and nothing that makes one is installed."""
    kernels = machine.names("/lib/modules")
    sources = [*machine.names("/usr/src"), *machine.names("/var/lib/dkms")]
    made = any(re.match("nvidia", name) for name in (*sources, *machine.names("/usr/src/akmods")))
    running = (machine.read("/proc/sys/kernel/osrelease") or "-").strip()
    known = running in kernels and len(machine.names(f"/lib/modules/{running}")) > 0
    return known and not made and not nvidia.on_disk(machine) and building.nowhere(machine)


def missing(machine: Machine) -> tuple[str, str, str] | None:
    """Why there is no module for this kernel, as far as those say who make it: seen, why, fix."""
    again = building.without_headers(machine)
    if again is not None:
        return (
            "its module was not built: this kernel's headers are not installed",
            "a new kernel came without them, and what builds modules needs them",
            headers.then(machine, f"then {again} && sudo modprobe nvidia"),
        )
    return (
        building.broken(machine)
        or halfway.unlisted(machine)
        or _for_another(machine)
        or building.without_others(machine)
        or _never_built(machine)
        or _linked_elsewhere(machine)
        or _not_at_boot(machine)
        or halfway.half_installed(machine)
    )


def _ipmi(machine: Machine) -> tuple[str, str, str] | None:
    """It was loaded by hand, without what it hangs on: seen, why, fix."""
    if not log.last(machine, r"nvidia: Unknown symbol ipmi_"):
        return None
    return (
        "its module wants another one, ipmi_devintf, which is not loaded",
        "insmod loads what a module hangs on with nothing but itself",
        "sudo modprobe ipmi_devintf && sudo modprobe nvidia",
    )


def _not_at_boot(machine: Machine) -> tuple[str, str, str] | None:
    """What loads it while the machine starts has failed: seen, why, fix."""
    failed = _loads_at_boot(machine)
    if failed is None:
        return None
    return (
        f"installed, and not loaded: {failed} has failed",
        "it loads the driver's modules while the machine starts",
        f"sudo systemctl restart {failed}; else journalctl -b -u {failed} says why",
    )


def _never_built(machine: Machine) -> tuple[str, str, str] | None:
    """DKMS has the driver's sources, and no module of it for any kernel: seen, why, fix."""
    rows = re.findall(
        r"^(nvidia(?:-(?:current|tesla|open|srv)[\w-]*)?)[/,] ?(\d[\d.]*)\b(.*)$",
        machine.run("dkms", "status").out,
        re.MULTILINE,
    )
    added = all(rest.endswith(": added") for _, _, rest in rows)
    if not rows or not added or not building.has_headers(machine):
        return None
    name, version, _ = rows[0]
    left, why = machine.free("/"), f"/var/lib/dkms/{name}/{version}/build/make.log"
    full = f", and / has {left / 1e9:.1f} GB left" if left is not None and left < 1e9 else ""
    return (
        f"DKMS has {version}, and has built no module of it{full}",
        "it did not build, or nobody asked for it; a kernel may be newer than the driver",
        "make room on /, then "
        * bool(full)
        + f"sudo dkms autoinstall && sudo modprobe nvidia; where it does not build, {why} says why:"
        " a newer driver, or boot the kernel of before",
    )


def _linked_elsewhere(machine: Machine) -> tuple[str, str, str] | None:
    """Enterprise Linux links kernels to modules of another one, which is gone: seen, why, fix."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    folder = f"/lib/modules/{running}/weak-updates"
    names = machine.names(folder) if running else []
    linked = [
        name
        for name in names
        for file in machine.names(f"{folder}/{name}")
        if file.startswith("nvidia.ko") and not machine.exists(f"{folder}/{name}/{file}")
    ]
    if not linked or nvidia.on_disk(machine):
        return None
    return (
        "its module is a link (weak-updates) to one of a kernel that is not installed",
        "the package has it for another kernel than the one that runs",
        (
            f"ls -l {folder}/{linked[0]} names that kernel: install and boot it; or sudo dnf"
            " upgrade 'kmod-nvidia*' once there is one for this kernel"
        ),
    )


def _loads_at_boot(machine: Machine) -> str | None:
    """A service that loads NVIDIA's modules, as some clouds have one, and that has failed."""
    said = machine.run("systemctl", "--failed", "--no-legend").out
    units = re.findall(r"(\S*nvidia\S*\.service)", said)
    return next((unit for unit in units if re.search("configure|driver|kmod|load", unit)), None)


def _for_another(machine: Machine) -> tuple[str, str, str] | None:
    """The module is there for another kernel than the one that runs: seen, why, fix."""
    old = building.by_dkms(machine)
    if old is not None and building.has_headers(machine):
        return (
            f"DKMS has built its module for kernel {old}, not for this one, whose headers are here",
            "nobody had it built, or it cannot be: a driver may be too old for a new kernel",
            f"sudo dkms autoinstall && sudo modprobe nvidia; else a newer driver, or boot {old}",
        )
    if old is not None:
        files = headers.install(machine)
        return (
            f"DKMS has built its module for kernel {old}, and not for the one that runs",
            "the kernel came without its headers, or before them",
            f"sudo dkms autoinstall && sudo modprobe nvidia; where headers lack: {files}",
        )
    other = building.elsewhere(machine)
    if other is None:
        return None
    seen = f"its module is there for kernel {other}, and not for the one that runs"
    own = _of_packages(machine, other)
    if own is not None:
        return seen, "packages have a module for each kernel, and this one's is missing", own
    return (
        seen,
        "it was installed without DKMS, which builds it anew for each kernel",
        (
            f"boot {other}; or install the kmod-nvidia of this kernel, once there is one; or sudo"
            f" dnf {_dkms(machine)}, which builds it"
            if "rhel" in distribution.names(machine)
            else "install the driver again for this kernel, from packages with DKMS (of a .run"
            f" file: sudo sh NVIDIA-Linux-*.run --dkms); or boot {other}"
        ),
    )


def _dkms(machine: Machine) -> str:
    """What dnf of Enterprise Linux is told to install, so that DKMS builds the module."""
    bare = distribution.is_without_modules(machine)
    return "install nvidia-open" if bare else "module install nvidia-driver:latest-dkms"


def _of_gentoo_or_suse(machine: Machine, other: str) -> str | None:
    names = distribution.names(machine)
    if names[:1] == ["gentoo"]:
        return distribution.BUILD["gentoo"]
    if "suse" not in " ".join(names):
        return None
    new = all(card.has_gsp for card in pci.cards(machine))
    kmp = "nvidia-open-driver-G06-signed-kmp-default" if new else "nvidia-driver-G06-kmp-default"
    return f"sudo zypper refresh && sudo zypper install -f {kmp} && sudo reboot; or boot {other}"


def _of_packages(machine: Machine, other: str) -> str | None:
    """How a distribution gets the module for this kernel that packages bring for each."""
    names = distribution.names(machine)[:1]
    of_some = _of_gentoo_or_suse(machine, other)
    if of_some is not None:
        return of_some
    if names == ["manjaro"]:
        kernel = re.match(r"(\d+)\.(\d+)\.", machine.read("/proc/sys/kernel/osrelease") or "")
        package = f"linux{kernel.group(1)}{kernel.group(2)}-nvidia" if kernel else "linuxNN-nvidia"
        return f"sudo pacman -S {package} && sudo reboot; or boot {other}"
    if "arch" in distribution.names(machine):
        return (
            "install the package of this kernel (linux-lts: nvidia-open-lts), or nvidia-open-dkms"
            f" and this kernel's headers; or boot {other}"
        )
    if machine.has("akmods") or machine.exists("/usr/src/akmods"):
        return headers.then(machine, "sudo akmods --force && sudo reboot")
    branch = building.ubuntu_branch(machine, other)
    if branch is None:
        return None
    return f"sudo apt-get install linux-modules-nvidia-{branch}-$(uname -r); or boot {other}"
