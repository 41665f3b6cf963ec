"""The keys with which NVIDIA's modules are signed, and how Secure Boot gets to know them."""

from __future__ import annotations

from doctor import distribution, kind
from host.machine import Machine

_UBLUE = "/etc/pki/akmods/certs/akmods-ublue.der"  # of Universal Blue's images
_AKMODS = "/etc/pki/akmods/certs/public_key.der"
_ELREPO = "/etc/pki/elrepo/SECURE-BOOT-KEY-elrepo.org.der"
# openSUSE's packages bring a key each; NVIDIA's installer makes one.
_FOLDERS = ("/var/lib/nvidia-pubkeys", "/usr/share/nvidia")


def file(machine: Machine) -> str:
    """The file of the key with which modules are signed here."""
    system = distribution.names(machine)
    for folder in _FOLDERS:
        own = [name for name in machine.names(folder) if name.endswith(".der")]
        if own:
            return f"{folder}/{max(own)}"
    if machine.exists(_UBLUE):
        return _UBLUE
    signer = machine.run("modinfo", "-F", "signer", "nvidia").out.lower()
    if "elrepo" in signer:
        return _ELREPO
    by_dkms = "dkms" in signer and not machine.exists(_AKMODS)
    if (system[:1] == ["fedora"] and not by_dkms) or machine.exists(_AKMODS):
        return _AKMODS
    return (
        "/var/lib/shim-signed/mok/MOK.der"
        if "ubuntu" in system or not system
        else "/var/lib/dkms/mok.pub"
    )


def enrol(machine: Machine) -> str:
    """How the key of a module is made known to Secure Boot."""
    if machine.exists(_UBLUE):
        return "ujust enroll-secure-boot-key && sudo reboot   # and enrol it in the blue screen"
    if kind.is_rented(machine) or kind.is_guest(machine):
        return (
            "switch Secure Boot off for this virtual machine, stopped, where it is made"
            " (Azure: az vm update --enable-secure-boot false; Google: gcloud compute instances"
            " update --no-shielded-secure-boot); or take your distribution's signed modules; or"
            f" sudo mokutil --import {file(machine)}, where its console shows the blue screen"
        )
    key = file(machine)
    first = "sudo kmodgenca -a; " if key == _AKMODS and not machine.exists(_AKMODS) else ""
    return (
        f"{first}sudo mokutil --import {key} && sudo reboot   # and enrol the key in the blue"
        " screen"
    )
