"""How fast data reaches the GPUs: slots, lanes, and boxes outside of the case."""

from __future__ import annotations

from doctor.finding import Finding, ok, skip, warn
from host import pci
from host.machine import Machine

_BUS = "/sys/bus/thunderbolt/devices"
# GB/s that reach a program, by the tunnel's Gb/s: Thunderbolt 2, 3 and 4 (USB4), 5. What PCIe says
# of a tunnel's ports is made up.
_TUNNEL = {20: 1.3, 40: 2.7, 80: 5.6}
_ADVICE = (
    "keep the data on the GPU (data.cache_on: gpu), raise batch or accumulation (lanes), and"
    " neither shard nor offload over that link"
)


def slots(machine: Machine) -> Finding:
    """Each card has the lanes that it could use."""
    inside = [c for c in pci.cards(machine) if not pci.is_removable(machine, c)]
    known = [(card, card.reachable) for card in inside]
    links = [(card, link) for card, link in known if link is not None and card.best is not None]
    if not links:
        return skip("PCIe", "no GPU")
    for card, link in links:
        assert card.best is not None
        if link.rate < 0.45 * card.best.rate:
            return warn(
                "PCIe",
                f"{card.address}: {link}, and the card can do {card.best}",
                f"about {link.rate:.1f} GB/s instead of {card.best.rate:.0f}",
                _mend(card, link),
            )
    kinds = sorted({f"{link}, about {link.rate:.0f} GB/s" for _, link in links})
    return ok("PCIe", "; ".join(kinds))


def _mend(card: pci.Card, link: pci.Link) -> str:
    assert card.best is not None
    if card.port and card.port.width <= link.width and card.port.width < card.best.width:
        return f"the slot has {card.port.width} lanes: move the card to a wider one; {_ADVICE}"
    if card.port and card.port.speed < card.best.speed and link.width >= card.best.width:
        return f"the slot is of an older generation; BIOS: PCIe speed of the slot; {_ADVICE}"
    return f"seat the card again, check riser and BIOS (bifurcation); {_ADVICE}"


def external(machine: Machine) -> Finding:
    """GPUs in boxes: Thunderbolt, USB4, and what they can carry."""
    docks = _docks(machine)
    outside = [c for c in pci.cards(machine) if pci.is_removable(machine, c)]
    waiting = [dock for dock in docks if machine.read(f"{_BUS}/{dock}/authorized") == "0"]
    if waiting and not outside:
        name = _name(machine, waiting[0])
        unique = machine.read(f"{_BUS}/{waiting[0]}/unique_id") or "UUID"
        return warn(
            "external GPU",
            f"{name} is connected, and not authorised",
            "a card in it stays invisible until then",
            f"sudo boltctl enroll --policy auto {unique}",
        )
    if not outside:
        return skip("external GPU", "no GPU outside of the case")
    if not docks:  # OCuLink and ExpressCard are PCIe as it is
        card = outside[0]
        link = card.reachable
        carries = f"about {link.rate:.1f} GB/s ({link})" if link else "an unknown rate"
        return warn("external GPU", f"{card.address}: {carries}", "a slow way to the GPU", _ADVICE)
    carried = _gigabits(machine, docks[0])
    rate = _TUNNEL[max((g for g in _TUNNEL if g <= carried), default=20)]
    return warn(
        "external GPU",
        f"{outside[0].address} in {_name(machine, docks[0])}, by {carried} Gb/s of Thunderbolt",
        f"about {rate:g} GB/s, where a slot has 13 to 52",
        _ADVICE,
    )


def _gigabits(machine: Machine, dock: str) -> int:
    """Gb/s that a box receives over all lanes; 40 where the kernel does not say."""
    speed = (machine.read(f"{_BUS}/{dock}/rx_speed") or "").split(".")[0]
    lanes = machine.read(f"{_BUS}/{dock}/rx_lanes") or ""
    return int(speed) * int(lanes) if speed.isdigit() and lanes.isdigit() else 40


def _docks(machine: Machine) -> list[str]:
    """Devices on the bus; those of the machine itself end in -0."""
    names = [n for n in machine.names(_BUS) if "-" in n and "." not in n and ":" not in n]
    return [n for n in names if not n.endswith("-0")]


def _name(machine: Machine, dock: str) -> str:
    words = [machine.read(f"{_BUS}/{dock}/{part}_name") or "" for part in ("vendor", "device")]
    return " ".join(word for word in words if word) or "a box"
