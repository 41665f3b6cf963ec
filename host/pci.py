"""NVIDIA's GPUs on the PCI bus, driver or not: https://docs.kernel.org/PCI/sysfs-pci.html."""

from __future__ import annotations

import re
from dataclasses import dataclass

from host.machine import Machine

_DEVICES = "/sys/bus/pci/devices"
# GB/s for each lane, after line coding, and what of it reaches a program: protocol overhead.
_LANE = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
_REACHES = 0.84
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
        width: lanes in use; what the card can do, and what the port above it can do.
    """

    address: str
    path: str
    driver: str | None
    width: int | None
    best: Link | None
    port: Link | None

    @property
    def reachable(self) -> Link | None:
        """The link under load; when idle its speed falls, but not its width."""
        if self.best is None or not self.width:
            return None
        speed = min(self.best.speed, self.port.speed) if self.port else self.best.speed
        return Link(speed, self.width)


def cards(machine: Machine) -> list[Card]:
    """All of NVIDIA's GPUs (class 0300 and 0302) on the bus."""
    found = []
    for address in machine.names(_DEVICES):
        folder = f"{_DEVICES}/{address}"
        # Class first: on most devices that is all that has to be read.
        kind = machine.read(f"{folder}/class") or ""
        if kind[:6] not in ("0x0300", "0x0302") or machine.read(f"{folder}/vendor") != "0x10de":
            continue
        path = machine.real(folder)
        above = path.rsplit("/", 1)[0]
        holds = machine.exists(f"{path}/driver")
        driver = machine.real(f"{path}/driver").rsplit("/", 1)[1] if holds else None
        width = _number(machine.read(f"{path}/current_link_width"))
        best, port = _best(machine, path), _best(machine, above)
        found.append(Card(address, path, driver, int(width) if width else None, best, port))
    return found


def is_removable(machine: Machine, card: Card) -> bool:
    """Whether the card hangs on a port that is outside of the case, as the firmware says."""
    parts = card.path.split("/")
    # /sys/devices/pci0000:00/<port>/…/<card>
    above = ["/".join(parts[:end]) for end in range(5, len(parts) + 1)]
    return any(machine.read(f"{path}/removable") == "removable" for path in above)


def _best(machine: Machine, path: str) -> Link | None:
    speed = _number(machine.read(f"{path}/max_link_speed"))
    width = _number(machine.read(f"{path}/max_link_width"))
    # 255: the device does not know.
    return Link(speed, int(width)) if speed and width and 0 < width < 64 else None


def _number(text: str | None) -> float | None:
    """16 of "16.0 GT/s PCIe"."""
    found = re.match(r"[\d.]+", text or "")
    return float(found.group()) if found else None
