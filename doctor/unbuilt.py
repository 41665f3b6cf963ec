"""Why the kernel did not take NVIDIA's module: not built for it, or not signed for it."""

from __future__ import annotations

import re

from doctor import building, distribution, log
from doctor.finding import Finding, fail
from host import nvidia
from host.machine import Machine

CPU = "or train on the CPU: CPUS=1"
_ENFORCED = "/sys/module/module/parameters/sig_enforce"
_LOCKED = r"unsigned module loading is restricted"
UNSIGNED = (
    r"Key was rejected by service|Loading of unsigned module"
    rf"|Loading of module with unavailable key is rejected|{_LOCKED}"
)
_OTHER_KERNEL = (
    r"version magic|Unknown symbol|disagrees about version of symbol|Invalid module format"
    r"|module nvidia\S*: \.gnu\.linkonce\.this_module section size must match"
    r"|module: nvidia\S*: Unknown rela relocation"
)


def examine(machine: Machine, on_bus: str) -> Finding:
    """There is a driver, and no module for this kernel, as far as can be seen."""
    build = distribution.of(machine, distribution.BUILD, distribution.DKMS)
    if log.last(machine, r"nvidia: Unknown symbol ipmi_"):
        return fail(
            "driver",
            f"{on_bus}; its module wants another one, ipmi_devintf, which is not loaded",
            "insmod loads what a module hangs on with nothing but itself",
            f"sudo modprobe ipmi_devintf && sudo modprobe nvidia; {CPU}",
        )
    if log.last(machine, _OTHER_KERNEL):
        seen, why = (
            "its module is for another kernel",
            "the module was not upgraded with the kernel",
        )
    elif secure_boot(machine):
        return not_signed(machine, on_bus)
    elif (again := building.without_headers(machine)) is not None:
        headers = distribution.headers(machine)
        return fail(
            "driver",
            f"{on_bus}; its module was not built: this kernel's headers are not installed",
            "a new kernel came without them, and what builds modules needs them",
            f"{headers}; then {again} && sudo modprobe nvidia; {CPU}",
        )
    elif found := (
        building.broken(machine)
        or _for_another(machine)
        or building.without_others(machine)
        or _never_built(machine)
        or _linked_elsewhere(machine)
    ):
        seen, why, build = found
        return fail("driver", f"{on_bus}; {seen}", why, f"{build}; {CPU}")
    else:
        seen = "installed, and not loaded"
        failed = _loads_at_boot(machine)
        if failed is not None:
            return fail(
                "driver",
                f"{on_bus}; {seen}: {failed} has failed",
                "it loads the driver's modules while the machine starts",
                f"sudo systemctl restart {failed}; else journalctl -b -u {failed} says why; {CPU}",
            )
        why = "after a kernel upgrade its module may not have been built; else the kernel says why"
        build = f"sudo modprobe nvidia; sudo dmesg | tail; {build}"
    return fail("driver", f"{on_bus}; {seen}", why, f"{build}   # {CPU}")


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
        headers = distribution.headers(machine)
        return (
            f"DKMS has built its module for kernel {old}, and not for the one that runs",
            "the kernel came without its headers, or before them",
            f"sudo dkms autoinstall && sudo modprobe nvidia; where headers lack: {headers}",
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


def _of_packages(machine: Machine, other: str) -> str | None:
    """How a distribution gets the module for this kernel that packages bring for each."""
    names = distribution.names(machine)[:1]
    if names == ["gentoo"]:
        return distribution.BUILD["gentoo"]
    if names == ["arch"]:
        return (
            "install the package of this kernel (linux-lts: nvidia-open-lts), or nvidia-open-dkms"
            f" and this kernel's headers; or boot {other}"
        )
    if machine.has("akmods") or machine.exists("/usr/src/akmods"):
        return f"{distribution.headers(machine)}; sudo akmods --force && sudo reboot"
    branch = building.ubuntu_branch(machine, other)
    if branch is None:
        return None
    return f"sudo apt-get install linux-modules-nvidia-{branch}-$(uname -r); or boot {other}"


def not_signed(machine: Machine, on_bus: str) -> Finding:
    """Secure Boot, or a kernel that is locked down, refuses the module."""
    if not secure_boot(machine) and log.last(machine, _LOCKED):
        return fail(
            "driver",
            f"{on_bus}; installed, not loaded, and the kernel is locked down",
            "it takes no module that is not signed by a key which it knows",
            "sign the module; or take lockdown= off the kernel's command line (/proc/cmdline;"
            f" Bottlerocket: settings.kernel.lockdown = none) and reboot; {CPU}",
        )
    if not secure_boot(machine) and (machine.read(_ENFORCED) or "").strip() == "Y":
        return fail(
            "driver",
            f"{on_bus}; installed, not loaded, and the kernel takes signed modules alone",
            "it has no Secure Boot and wants signatures all the same (module.sig_enforce, or"
            " CONFIG_MODULE_SIG_FORCE)",
            "take module.sig_enforce off the kernel's command line, or sign the modules with the"
            f" kernel's key (Gentoo: USE=modules-sign), and load them again; {CPU}",
        )
    why, key = "the kernel refuses a module whose key it does not know", distribution.enrol(machine)
    signer = machine.run("modinfo", "-F", "signer", "nvidia")
    by_dkms = machine.names("/var/lib/dkms") or machine.run("dkms", "status").out.strip()
    unsigned = signer.code == 0 and not signer.out.strip() and not by_dkms
    if unsigned and machine.exists("/run/ostree-booted"):
        key = (
            "rpm-ostree builds it without akmods' keys, so it has no signature: build and layer the"
            " package akmods-keys with them, and layer the driver again; or rebase to an image"
            " whose module is signed (Universal Blue); or switch Secure Boot off in the firmware"
        )
    elif unsigned and distribution.names(machine)[:1] == ["fedora"]:
        why = "akmods had no key when it built the module: it has no signature"
        key = key.replace("&& sudo reboot", "&& sudo akmods --force --rebuild && sudo reboot")
    elif unsigned:
        key = (
            "install the driver from your distribution's signed packages (Ubuntu:"
            " linux-modules-nvidia-*-generic), since this module has no signature; or switch"
            " Secure Boot off in the firmware's setup"
        )
    elif "already enrolled" in machine.run("mokutil", "--test-key", distribution.key(machine)).said:
        why = (
            "its key is enrolled, and the kernel does not trust that for modules (keyctl list"
            " %:.machine), or it was signed with another one (modinfo -F sig_key nvidia)"
        )
        key = (
            "have it built and signed again, sudo mokutil --trust-mok, and reboot; where the key"
            " stays out of .machine, switch Secure Boot off in the firmware"
        )
    return fail(
        "driver",
        f"{on_bus}; installed, not loaded, and Secure Boot is on",
        why,
        f"{key}; {CPU}",
    )


def secure_boot(machine: Machine) -> bool:
    """Whether the firmware started this kernel with Secure Boot on."""
    folder = "/sys/firmware/efi/efivars"
    names = [n for n in machine.names(folder) if n.startswith("SecureBoot-")]
    # Four bytes of attributes, then the value.
    read = any((machine.read(f"{folder}/{name}") or "")[-1:] == "\x01" for name in names)
    return read or log.last(machine, r"secureboot: Secure boot enabled") is not None
