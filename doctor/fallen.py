"""What helps where a card has fallen off the bus, by where it is plugged in."""

from __future__ import annotations

from doctor import kind, log
from host import pci
from host.machine import Machine

OF_A_LAPTOP = (
    "power the laptop off, half a minute without charger, and on; then update BIOS and driver"
)
_TUNNELLED = 4  # lanes
_KEPT = "_OSC: platform retains control of PCIe features"


def _is_outside(machine: Machine) -> bool:
    """Whether a card has no more lanes than a tunnel has, where something is on Thunderbolt."""
    cards = pci.cards(machine)
    # What is soldered in has no more lanes than it could use.
    narrow = any(c.width and c.best and c.width <= _TUNNELLED < c.best.width for c in cards)
    outside = any(pci.is_removable(machine, card) for card in cards)
    return outside or (narrow and kind.is_laptop(machine) and bool(pci.boxes(machine)))


def raised(machine: Machine) -> str | None:
    """How it is brought back, and kept; None where it is what helps everywhere."""
    if pci.gpu_boxes(machine) or _is_outside(machine):
        return (
            "switch the box off and on with the cable in it, and reboot; then look at the card's"
            " power plugs, the box's supply, another cable and port; where it comes back, a lower"
            " PCIe generation of its link, by setpci before the driver is loaded"
        )
    native = "pcie_ports=native" in (machine.read("/proc/cmdline") or "")
    kept = not native and log.last(machine, _KEPT)
    if kind.is_laptop(machine):
        return OF_A_LAPTOP + "; a card by OCuLink: boot with pcie_ports=native" * bool(kept)
    if kept:
        # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1247
        return (
            "power the machine off and on; then look at plugs, riser and cooling; a card outside,"
            " by OCuLink: boot with pcie_ports=native, since the firmware keeps PCIe's errors to"
            " itself"
        )
    return None
