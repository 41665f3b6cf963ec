"""A GPU that has stopped answering, and why it may have."""

from __future__ import annotations

import re

from doctor import kind, log, reasons
from doctor.finding import Finding, fail
from host import limits, nvidia, pci
from host.machine import Machine

SIGN = r"device handle|gpu is lost|fallen off the bus"
"""How nvidia-smi says it."""
WHY = "a GPU stopped answering: power, heat, riser or the card itself"
FIX = "sudo dmesg | grep -iE 'nvrm|xid'; then sudo reboot"
_REBOOT = "sudo reboot"
_CPU = "or train on the CPU: CPUS=1"
_ALLOWS_GUESTS = 465  # the first driver that starts a GeForce in a virtual machine


def explained(machine: Machine, row: str) -> Finding:
    """What a row of nvidia-smi means that says so: the kernel's log may say why."""
    why, fix = WHY, FIX
    cards = pci.cards(machine)
    known = reasons.logged(machine, cards)
    if known is not None:
        seen, why, fix = known
        return fail("driver", f"{row}; {seen}", why, f"{fix}; {_CPU}")
    loaded = (nvidia.loaded(machine) or "").split(".")[0]
    if kind.is_guest(machine):
        if loaded.isdecimal() and int(loaded) < _ALLOWS_GUESTS:
            return fail(
                "driver",
                f"{row}; driver {loaded} in a virtual machine",
                f"drivers before {_ALLOWS_GUESTS} do not start a GeForce there",
                f"install driver {_ALLOWS_GUESTS} or newer; or hide the hypervisor on the host"
                " (<kvm><hidden state='on'/></kvm>)",
            )
        why = "a GPU stopped answering: the card, or how the host passes it through"
        fix = "restart this virtual machine; then ask who runs its host"
    elif limits.in_container(machine.root):
        fix = (
            "on the host: power it off and on; where you rent it, stop this container and take"
            " another machine"
        )
    elif log.last(machine, rf"pcieport ({_ports(cards)}): AER: .*error"):
        why = "its PCIe link had errors before (AER, in the kernel's log): slot, riser, or the card"
        fix = (
            f"{_REBOOT}; then seat the card again, leave out a riser, set the slot's PCIe"
            " generation lower in the BIOS; sudo dmesg | grep -iE 'nvrm|xid|aer'"
        )
    return fail("driver", row, why, f"{fix}; {_CPU}")


def _ports(cards: list[pci.Card]) -> str:
    """The ports above the cards, as an expression."""
    names = {part for card in cards for part in card.path.split("/")[:-1] if part.count(":") == 2}
    return "|".join(map(re.escape, sorted(names))) or "(?!)"
