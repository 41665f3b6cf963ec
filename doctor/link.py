"""How fast data reaches the GPUs: slots, lanes, and boxes outside of the case."""

from __future__ import annotations

import itertools
import re

from doctor import kind
from doctor.finding import Finding, fail, ok, skip, warn
from host import nvidia, pci, visible
from host.machine import Machine
from host.text import number, whole

FREEZES = "external GPU's bridge"
"""The row of what may take the machine down when it is first used."""
_MANY, _DAYS = 10_000, 10  # corrected errors since the machine was started; in so many days
_BUSY, _FILLED = 50, 1024  # per cent; MiB
_BLACKWELL, _BRIDGE = 0x2900, "0x5786"
_FAR = 4  # bridges and the card; one in the case has no more
_HALF = 20  # Gb/s, where box and machine do twice that
_GOOD = 6  # GB/s: PCIe 3 x8
_ENOUGH = 2.5  # GB/s: images for a GPU to train on are fewer
_WITHOUT_PCIE = ("dponly", "nopcie", "usbonly")
# GB/s that reach a program, by the tunnel's Gb/s: Thunderbolt 2 (and slow cables), 3 and 4, 5.
# What PCIe says of a tunnel's ports is made up.
_TUNNEL = {20: 1.3, 40: 2.7, 80: 5.6}
_NEAR = "data.cache_on: gpu spares the link"
_ADVICE = (
    "keep the data on the GPU (data.cache_on: gpu), raise batch or accumulation (lanes), and"
    " neither shard nor offload over that link"
)


def slots(machine: Machine) -> Finding:
    """Each card has the lanes that it could use, and they carry what they should."""
    _, gpus = nvidia.ask(machine)
    # What is told of a virtual one's slot is made up.
    inner = {gpu.place for gpu in gpus if gpu.is_integrated or gpu.is_virtual}
    # Others are a guest's, another container's, or drive a screen.
    listed = {gpu.place for gpu in gpus}
    cards = [c for c in pci.cards(machine) if c.address in listed or not listed]
    cards = [c for c in cards if c.address not in inner]
    storm = _storm(machine, cards)
    if storm is not None:
        return storm
    inside = [c for c in cards if not pci.is_removable(machine, c)]
    known = [(card, card.reachable) for card in inside]
    links = [(card, link) for card, link in known if link is not None and card.best is not None]
    if not links:
        if inner:
            virtual = any(gpu.is_virtual for gpu in gpus)
            return skip("PCIe", f"the GPU is {'virtual' if virtual else 'a part of the processor'}")
        return skip("PCIe", "not known: the system does not say" if inside else "no GPU")
    # One that nvidia-smi has just woken says that it is busy, and has nothing in its memory.
    full = {gpu.place for gpu in gpus if (gpu.number("memory.used") or 0) > _FILLED}
    busy = {gpu.place for gpu in nvidia.health(machine) if _is_busy(gpu)} & full
    for card, link in links:
        assert card.best is not None
        if card.address in busy and card.speed and card.speed < 0.9 * link.speed:
            now = pci.Link(card.speed, link.width)
            return warn(
                "PCIe",
                f"{card.address}: {now} under load, and card and slot can do {link}",
                f"about {now.rate:.1f} GB/s instead of {link.rate:.0f}",
                f"{_ruled(machine)}BIOS: set the slot's PCIe generation by hand, and update it;"
                " seat the card again, leave out a riser; update the driver",
            )
        if link.rate < 0.45 * card.best.rate and not _is_meant(machine, card, link):
            return warn(
                "PCIe",
                f"{card.address}: {link}, and the card can do {card.best}",
                f"about {link.rate:.1f} GB/s instead of {card.best.rate:.0f}",
                _mend(machine, card, link),
            )
    kinds = sorted({f"{link}, about {link.rate:.0f} GB/s" for _, link in links})
    return ok("PCIe", "; ".join(kinds))


def _is_meant(machine: Machine, card: pci.Card, link: pci.Link) -> bool:
    """Whether the slot has no more lanes, and those will do.

    What a laptop's board gives its GPU nobody can change.
    """
    assert card.best is not None
    port = card.port
    narrow = port is not None and port.width <= link.width < card.best.width
    # A board of an older generation has no faster slot.
    older = port is not None and port.speed < card.best.speed and link.width >= card.best.width
    enough = (narrow and link.rate > _ENOUGH) or (older and link.rate > _GOOD)
    return kind.is_laptop(machine) or enough


def _storm(machine: Machine, cards: list[pci.Card]) -> Finding | None:
    """A link that has to repeat much of what it carries."""
    counts = [(pci.corrected_errors(machine, card), card) for card in cards]
    many, card = max(counts, key=lambda pair: pair[0], default=(0, None))
    days = max(1.0, (machine.uptime() or 0) / 86400)
    if card is None or many < _MANY * max(1.0, days / _DAYS):
        return None
    return warn(
        "PCIe",
        f"{card.address}: {many:,} errors were corrected on its link",
        "packets had to be sent again: it is slower, and the GPU may fall off the bus",
        "seat the card again, leave out a riser, set the slot a PCIe generation lower in the BIOS;"
        " pcie_aspm=off as a trial",
    )


def _is_busy(gpu: nvidia.Gpu) -> bool:
    return (gpu.number("utilization.gpu") or 0) > _BUSY and gpu.text("pstate") in ("P0", "P1", "P2")


def _ruled(machine: Machine) -> str:
    """What else helps where a rule of udev writes into the registers of links."""
    for name in machine.names("/etc/udev/rules.d"):
        if re.search(r"setpci.*CAP_EXP", machine.read(f"/etc/udev/rules.d/{name}") or ""):
            return f"take away /etc/udev/rules.d/{name}, which writes into links, and reboot; "
    return ""


def _mend(machine: Machine, card: pci.Card, link: pci.Link) -> str:
    assert card.best is not None
    if card.port and card.port.width <= link.width and card.port.width < card.best.width:
        lanes = f"{card.port.width} lane{'s' * (card.port.width != 1)}"
        return f"the slot has {lanes}: move the card to a wider one; {_ADVICE}"
    if card.port and card.port.speed < card.best.speed and link.width >= card.best.width:
        return f"the slot is of an older generation; BIOS: PCIe speed of the slot; {_ADVICE}"
    again = "power it off and on, since a reset when the card is handed over may halve its lanes; "
    where = f"on the machine that runs this one: {again}" if kind.is_guest(machine) else ""
    return f"{where}seat the card again, check riser and BIOS (bifurcation); {_ADVICE}"


def freezes(machine: Machine) -> Finding:
    """No external GPU of those that take the machine down when they are first used.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/979
    """
    version = machine.read("/proc/driver/nvidia/version") or ""
    used = {gpu.place for gpu in visible.seen(machine)}
    for card in (card for card in pci.cards(machine) if card.address in used):
        above = [machine.read(f"{path}/device") for path in pci.way(card)[:-1]]
        if card.device >= _BLACKWELL and _BRIDGE in above and "Open Kernel Module" in version:
            return fail(
                FREEZES,
                f"{card.address}: RTX 50 behind Intel's JHL9480, under the open kernel modules",
                "many such machines freeze, or lose the GPU, at the first load",
                "save your work, then DOCTOR=0 make train; what helped some:"
                " sudo nvidia-smi -pm 1; sudo nvidia-smi -lgc 3000,3000",
            )
    return skip(FREEZES, "no GPU outside of the case")


def external(machine: Machine) -> Finding:
    """GPUs in boxes: Thunderbolt, USB4, and what they can carry."""
    boxes = pci.boxes(machine)
    outside = [c for c in pci.cards(machine) if pci.is_removable(machine, c)]
    others = bool(outside or nvidia.ask(machine)[1])  # a dock or a screen has no GPU in it
    unwell = _shut(machine, boxes, others) or (None if outside else _lost(machine))
    if unwell is not None:
        return unwell
    if not outside:
        return skip("external GPU", "no GPU outside of the case")
    card = outside[0]
    if not boxes:  # OCuLink and ExpressCard are PCIe as it is
        link = card.reachable
        carries = f"about {link.rate:.1f} GB/s ({link})" if link else "an unknown rate"
        if link is None or link.rate > _ENOUGH:
            return ok("external GPU", f"{card.address}: {carries}; {_NEAR}")
        return warn("external GPU", f"{card.address}: {carries}", "a slow way to the GPU", _ADVICE)
    box = max(boxes, key=lambda name: _likeness(machine, name, card))
    carried = _gigabits(machine, box)
    rate = _TUNNEL[max((g for g in _TUNNEL if g <= carried), default=20)]
    seen = f"{card.address} in {_name(machine, box)}, by {carried} Gb/s of Thunderbolt"
    if rate > _ENOUGH:
        return ok("external GPU", f"{seen}, about {rate:g} GB/s; {_NEAR}")
    cable = "a cable of 40 Gb/s, short, may carry twice as much; " if carried == _HALF else ""
    why = f"about {rate:g} GB/s, where a slot has 13 to 52"
    return warn("external GPU", seen, why, f"{cable}{_ADVICE}")


def _shut(machine: Machine, boxes: list[str], others: bool) -> Finding | None:
    """A box that Linux has not let in; where others work, only one that is made for GPUs."""
    for box in boxes:
        if others and not pci.GPU_BOX.search(_name(machine, box)):
            continue
        security = machine.read(f"{pci.THUNDERBOLT}/domain{box.split('-')[0]}/security")
        named = machine.read(f"{pci.THUNDERBOLT}/{box}/device_name") is not None  # no computer
        shut = machine.read(f"{pci.THUNDERBOLT}/{box}/authorized") != "1"
        if security in _WITHOUT_PCIE and named and shut:
            return warn(
                "external GPU",
                f"{_name(machine, box)} is connected, and the firmware allows no PCIe: {security}",
                "a card in it stays invisible, whatever is typed here",
                "BIOS: set Thunderbolt's security to User Authorization; then boltctl enroll",
            )
        if machine.read(f"{pci.THUNDERBOLT}/{box}/authorized") == "0":
            unique = machine.read(f"{pci.THUNDERBOLT}/{box}/unique_id") or "UUID"
            bolt = "" if machine.has("boltctl") else "install bolt, then "
            return warn(
                "external GPU",
                f"{_name(machine, box)} is connected, and not authorised",
                "a card in it stays invisible until then",
                f"{bolt}sudo boltctl enroll --policy auto {unique}",
            )
    return None


def _lost(machine: Machine) -> Finding | None:
    """A box for GPUs that is let in, and shows none."""
    for box in [] if _has_amds(machine) else pci.gpu_boxes(machine):
        if machine.read(f"{pci.THUNDERBOLT}/{box}/authorized") == "1":
            return warn(
                "external GPU",
                f"{_name(machine, box)} is authorised, and no NVIDIA GPU of it is on the PCI bus",
                "the tunnel sleeps, or the card in it has no power",
                "switch the box off and on with the cable in it; check the card's power plugs; keep"
                " the port awake: echo on | sudo tee /sys/bus/pci/devices/*/power/control",
            )
    return None


def _has_amds(machine: Machine) -> bool:
    """Whether a card of AMD's is so far from the processor as boxes are: a port, a switch of the
    tunnel, a switch of its own.
    """
    ways = (machine.real(f"{pci.DEVICES}/{place}") for place in pci.of_maker(machine, "0x1002"))
    return any(len(re.findall(r"/[\da-f]{4}:[\da-f]{2}:", way)) > _FAR for way in ways)


def _likeness(machine: Machine, box: str, card: pci.Card) -> tuple[int, bool, bool]:
    """How much speaks for a card to be in a box: the way that they share, and the box's name."""
    own = machine.real(f"{pci.THUNDERBOLT}/{box}").split("/")
    pairs = zip(own, card.path.split("/"))
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    name = _name(machine, box)
    return (
        shared,
        pci.GPU_BOX.search(name) is not None,
        not re.search("dock|hub|display", name, re.IGNORECASE),
    )


def _gigabits(machine: Machine, box: str) -> int:
    """Gb/s that a box receives over all lanes; 40 where the kernel does not say."""
    speed = number(machine.read(f"{pci.THUNDERBOLT}/{box}/rx_speed"))
    lanes = whole(machine.read(f"{pci.THUNDERBOLT}/{box}/rx_lanes"))
    return int(speed) * lanes if speed and lanes else 40


def _name(machine: Machine, box: str) -> str:
    return pci.box_name(machine, box) or "a box"
