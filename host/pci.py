"""NVIDIA's GPUs on the PCI bus, driver or not: https://docs.kernel.org/PCI/sysfs-pci.html."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from host.machine import Machine
from host.text import number

DEVICES = "/sys/bus/pci/devices"
# GB/s for each lane, after line coding, and what of it reaches a program: protocol overhead.
_LANE = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
_REACHES = 0.84
INTEL = "0x8086"
_MAXWELL, _TURING, _BLACKWELL = 0x1340, 0x1E00, 0x2900
THUNDERBOLT = "/sys/bus/thunderbolt/devices"
_BRIDGES = 4  # on the way to a card outside: a port, and two switches of two
_TUNNELLED = 4  # lanes at most
GPU_BOX = re.compile(
    r"gpu|core x|core v|breakaway|node (titan|pro|lite)|akitio node|aorus|ai box|gv-n|mantiz|egfx"
    r"|\but\dg\b|\bth\dp\d|\bgpd.*\bg1\b|xg mobile|wikingoo",
    re.IGNORECASE,
)
"""Names of boxes that are made for GPUs."""
_UNKNOWN = 63  # lanes: what a device says, in six bits or eight, that does not know
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True)
class Link:
    """A PCIe link: transfers per lane (GT/s) and lanes."""

    speed: float
    width: int

    @property
    def rate(self) -> float:
        """GB/s to expect of copies from pinned memory: 13, 26, 52 for x16 of generation 3, 4, 5."""
        return _LANE.get(self.speed, 0.0) * self.width * _REACHES

    def __str__(self) -> str:
        return f"PCIe {GENERATIONS.get(self.speed, '?')} x{self.width}"


@dataclass(frozen=True)
class Card:
    """A GPU on the bus.

    Attributes:
        address: 0000:01:00.0.
        path: its folder in sysfs, ports and bridges above it in the path.
        driver: the kernel module that holds it, if any.
        device: its number among NVIDIA's, 0x2684.
        width: lanes in use; what the card can do, and what the port above it can do.
        speed: GT/s in use.
    """

    address: str
    path: str
    driver: str | None
    width: int | None
    best: Link | None
    port: Link | None
    speed: float | None = None
    device: int = 0

    @property
    def has_gsp(self) -> bool:
        """Whether it has firmware of its own (GSP), as all from Turing on."""
        return self.device >= _TURING

    @property
    def is_maxwell(self) -> bool:
        """Whether it is of Maxwell or later."""
        return self.device >= _MAXWELL

    @property
    def is_blackwell(self) -> bool:
        """Whether it is of Blackwell or later, which drivers before 570 do not know."""
        return self.device >= _BLACKWELL

    @property
    def reachable(self) -> Link | None:
        """The link under load; when idle its speed falls, but not its width."""
        if self.best is None or not self.width:
            return None
        speed = min(self.best.speed, self.port.speed) if self.port else self.best.speed
        if self.port and self.port.width < self.width:
            return Link(self.best.speed, self.width)  # what a guest is told of its slot is made up
        return Link(speed, self.width)


@lru_cache(maxsize=1)  # many checks ask, each of the same machine
def cards(machine: Machine) -> list[Card]:
    """All of NVIDIA's GPUs (class 0300 and 0302) on the bus."""
    found = []
    for address in machine.names(DEVICES):
        folder = f"{DEVICES}/{address}"
        # Class first: on most devices that is all that has to be read.
        kind = machine.read(f"{folder}/class") or ""
        if kind[:6] not in ("0x0300", "0x0302") or machine.read(f"{folder}/vendor") != "0x10de":
            continue
        path = machine.real(folder)
        above = path.rsplit("/", 1)[0]
        holds = machine.exists(f"{path}/driver")
        driver = machine.real(f"{path}/driver").rsplit("/", 1)[1] if holds else None
        width = number(machine.read(f"{path}/current_link_width"))
        best, port = _best(machine, path), _best(machine, above)
        lanes = int(width) if width and 0 < width < _UNKNOWN else None
        speed = number(machine.read(f"{path}/current_link_speed"))
        told = re.fullmatch(r"0x([0-9a-f]{4})", machine.read(f"{path}/device") or "")
        device = int(told.group(1), 16) if told else 0
        found.append(Card(address, path, driver, lanes, best, port, speed, device))
    return found


def of_maker(machine: Machine, vendor: str) -> list[str]:
    """The addresses of another maker's GPUs."""
    folders = ((address, f"{DEVICES}/{address}") for address in machine.names(DEVICES))
    return [
        address
        for address, folder in folders
        if (machine.read(f"{folder}/class") or "").startswith("0x03")
        and machine.read(f"{folder}/vendor") == vendor
    ]


def way(card: Card) -> list[str]:
    """The folders of a card and of the ports and bridges above it, the outermost first."""
    parts = card.path.split("/")
    # /sys/devices/pci0000:00/<port>/…/<card>
    return ["/".join(parts[:end]) for end in range(5, len(parts) + 1)]


def is_removable(machine: Machine, card: Card) -> bool:
    """Whether the card is outside of the case: as the firmware says, or by its way there.

    Kernels before 5.14 do not say, and none does of a Thunderbolt card in a slot: behind one of
    its ports stand two switches with a bridge each, and four lanes come out.
    """
    above = way(card)
    if any(machine.read(f"{path}/removable") == "removable" for path in above):
        return True
    if card.width is None or card.width > _TUNNELLED:
        return False
    if len(above) > _BRIDGES:
        return boxes(machine) != []
    # A processor that has Thunderbolt itself has no switch of its own before the box's.
    return len(above) == _BRIDGES and gpu_boxes(machine) != []


def boxes(machine: Machine) -> list[str]:
    """Devices on the Thunderbolt bus; those of the machine itself end in -0."""
    names = [n for n in machine.names(THUNDERBOLT) if "-" in n and "." not in n and ":" not in n]
    return [n for n in names if not n.endswith("-0")]


def gpu_boxes(machine: Machine) -> list[str]:
    """Those of them that are made for GPUs, by their names."""
    return [box for box in boxes(machine) if GPU_BOX.search(box_name(machine, box))]


def box_name(machine: Machine, box: str) -> str:
    """Maker and model of a device on the Thunderbolt bus; empty where it does not say."""
    words = [
        machine.read(f"{THUNDERBOLT}/{box}/{part}_name") or "" for part in ("vendor", "device")
    ]
    return " ".join(word for word in words if word)


def corrected_errors(machine: Machine, card: Card) -> int:
    """Packets that had to be sent again on the card's way, since the machine was started."""
    counts = [0]
    for path in way(card):
        said = machine.read(f"{path}/aer_dev_correctable") or ""
        counts += [int(n) for n in re.findall(r"TOTAL_ERR_COR ([0-9]{1,18})", said)]
    return max(counts)


def _best(machine: Machine, path: str) -> Link | None:
    speed = number(machine.read(f"{path}/max_link_speed"))
    width = number(machine.read(f"{path}/max_link_width"))
    known = speed and width and 0 < width < _UNKNOWN
    return Link(speed, int(width)) if known and speed and width else None
