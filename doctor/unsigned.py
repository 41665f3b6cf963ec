"""Why the kernel refuses NVIDIA's module: it is not signed for it."""

from __future__ import annotations

from doctor import building, distribution, keys, log
from doctor.finding import Finding, fail
from host.machine import Machine

CPU = "or train on the CPU: CPUS=1"
_ENFORCED = "/sys/module/module/parameters/sig_enforce"
_LOCKED = r"unsigned module loading is restricted"
REFUSED = (
    r"Key was rejected by service|Loading of unsigned module"
    rf"|Loading of module with unavailable key is rejected|{_LOCKED}"
)


def found(machine: Machine, on_bus: str) -> Finding:
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
    why, key = "the kernel refuses a module whose key it does not know", keys.enrol(machine)
    signer = machine.run("modinfo", "-F", "signer", "nvidia")
    bare = signer.code == 0 and not signer.out.strip()
    unsigned = bare and not building.is_by_dkms(machine)
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
    elif "already enrolled" in machine.run("mokutil", "--test-key", keys.file(machine)).said:
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
