"""Guests whose memory their host cannot read: why a GPU does not start there."""

from __future__ import annotations

import re

from doctor import kind
from host import visible
from host.machine import Machine

_SEALS = re.compile(r"\b(H[12]00|H20|B[123]00|RTX PRO 6000)\b")
_DEVICES = {"sev-guest", "tdx_guest"}
ONCE = (
    "in confidential mode a GPU starts once: when the first program ends, the driver lets it go",
    (
        "restart this virtual machine, and before the first program: sudo systemctl enable --now"
        " nvidia-persistenced (or nvidia-smi -pm 1)"
    ),
)
"""A card that was let go: why, and what helps."""
UNREADY = (
    "confidential computing is on, and the GPUs are not set ready",
    "attest them, then sudo nvidia-smi conf-compute -srs 1, at each boot",
)
"""Cards that start for nobody yet: what is seen, and what helps."""
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


def waits(machine: Machine) -> bool:
    """Whether the GPUs of such a guest are not made ready yet."""
    able = any(_SEALS.search(gpu.name) for gpu in visible.seen(machine))
    if not able or not kind.is_guest(machine):
        return False
    # Where the mode is off, the state is "not-ready" too, and CUDA starts.
    if "status: ON" not in machine.run("nvidia-smi", "conf-compute", "-f").out:
        return False
    return bool(re.search("not[- ]ready", machine.run("nvidia-smi", "conf-compute", "-grs").out))


def unreached(machine: Machine, text: str) -> tuple[str, str, str] | None:
    """The kernel has not loaded what the driver speaks to the card with: seen, why, what helps.

    https://github.com/NVIDIA/nvtrust/issues/19
    """
    loaded = machine.read("/proc/modules") or ""
    failed = "FSP boot cmds failed" in text
    missing = bool(loaded) and "ecdsa_generic" not in loaded
    return _LKCA if is_sealed(machine) and failed and missing else None
