"""Guests whose memory their host cannot read: why a GPU does not start there."""

from __future__ import annotations

from host.machine import Machine

_DEVICES = {"sev-guest", "tdx_guest"}
ONCE = (
    "in confidential mode a GPU starts once: when the first program ends, the driver lets it go",
    (
        "restart this virtual machine, and before the first program: sudo systemctl enable --now"
        " nvidia-persistenced (or nvidia-smi -pm 1)"
    ),
)
"""A card that was let go: why, and what helps."""
_LKCA = (
    "the driver does not reach the card's own processor (FSP boot commands failed)",
    "in confidential mode they speak encrypted, and the kernel's modules for that are not loaded",
    (
        "sudo modprobe ecdsa_generic; sudo modprobe ecdh_generic; sudo modprobe aesni_intel; then"
        " nvidia; for good in /etc/modules-load.d and the initramfs"
    ),
)


def is_sealed(machine: Machine) -> bool:
    """Whether this is such a guest."""
    return bool({*machine.names("/dev")} & _DEVICES)


def unreached(machine: Machine, text: str) -> tuple[str, str, str] | None:
    """The kernel has not loaded what the driver speaks to the card with: seen, why, what helps.

    https://github.com/NVIDIA/nvtrust/issues/19
    """
    loaded = machine.read("/proc/modules") or ""
    failed = "FSP boot cmds failed" in text
    missing = bool(loaded) and "ecdsa_generic" not in loaded
    return _LKCA if is_sealed(machine) and failed and missing else None
