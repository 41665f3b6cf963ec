"""Which of the faults in the kernel's log are over."""

from __future__ import annotations

import re

from doctor import kind
from doctor.xids import MEANING
from host import apps, kernel, limits, nvidia
from host.machine import Machine

_STAY = ("64", "157")
_OF_MEMORY = (48, 63, 94, 95)  # which the next reset mends
_OF_LINKS = (144, 146, 147, 148, 150)


def named(xid: re.Match[str]) -> str:
    """The program that a fault names; empty where the driver does not know it."""
    told = re.search(r"name=([^,\s<][^,]*)", xid.group(3))
    return told.group(1) if told else ""


def is_of_a_game(machine: Machine, xid: re.Match[str]) -> bool:
    """Whether a fault is of a program that draws, or, since games have any name, of one at a desk
    that is not known to compute.
    """
    name = named(xid)
    shown = any(gpu.text("display_active") == "Enabled" for gpu in nvidia.ask(machine)[1])
    desk = shown or kind.is_laptop(machine)
    return bool(name) and (apps.draws(name) or (desk and not apps.COMPUTES.match(name)))


def since_reset(machine: Machine, found: list[re.Match[str]], place: str) -> list[re.Match[str]]:
    """A GPU's faults since the driver had nothing more to ask for."""
    own = [each for each in found if each.group(1) == place]
    mended = [n for n, x in enumerate(own) if x.group(2) == "154" and "to 0x0" in x.group(3)]
    after = own[mended[-1] + 1 :] if mended else own
    known = [
        each for each in after if int(each.group(2)) in MEANING and not _is_noise(machine, each)
    ]
    settled = _is_settled(machine, place)
    return [each for each in known if not (settled and int(each.group(2)) in _OF_MEMORY)]


def since_loaded(machine: Machine, said: list[str]) -> list[str]:
    """The log since the driver was loaded anew, which resets the GPUs; but for memory's faults that
    stay.
    """
    gone = [n for n, row in enumerate(said) if "nvidia-nvlink: Unregistered Nvlink Core" in row]
    after = said[gone[-1] :] if gone else []
    again = any("NVRM: loading NVIDIA UNIX" in row for row in after)
    if not again or not nvidia.ask(machine)[1]:
        return _since_plugged(machine, said)
    stay = [row for row in said[: gone[-1]] if (x := kernel.XID.search(row)) and x[2] in _STAY]
    return [*stay, *after]


def _since_plugged(machine: Machine, said: list[str]) -> list[str]:
    """The log without the loss of a GPU that was plugged in again since, and is listed."""
    rows, listed = list[str](), [gpu.place for gpu in nvidia.ask(machine)[1]]
    for row in said:
        found = re.search(r"\bpci ([0-9a-f:.]+): \[10de:", row)
        if found and found.group(1) in listed:
            place = found.group(1).rpartition(".")[0]
            lost = re.compile(rf"Xid \(PCI:{place}[.0-9]*\): 79,|{place}.*fallen off the bus")
            rows = [each for each in rows if not lost.search(each)]
        rows.append(row)
    return rows


def falls_again(said: list[str]) -> tuple[str, int] | None:
    """A GPU that fell off the bus more than once, each time until the driver was loaded anew, and
    how often.
    """
    lost = [x.group(1) for x in map(kernel.XID.search, said) if x and x.group(2) == "79"]
    often = [place for place in lost if lost.count(place) > 1]
    loads = sum("NVRM: loading NVIDIA UNIX" in row for row in said)
    return (often[-1], lost.count(often[-1])) if often and loads > lost.count(often[-1]) else None


def _is_noise(machine: Machine, xid: re.Match[str]) -> bool:
    """Whether a fault of NVLink says that it ended nothing (145 has said so of one that had), or a
    game, or the like, ended by itself.
    """
    if xid.group(2) == "109" and is_of_a_game(machine, xid):
        return True
    quiet = re.search(r"\bNon-?fatal\b", xid.group(3), re.IGNORECASE)
    return int(xid.group(2)) in _OF_LINKS and quiet is not None


def _is_settled(machine: Machine, place: str) -> bool:
    """Whether a GPU counts no error of its memory since its last reset, and waits for nothing."""
    health = {gpu.index: gpu for gpu in nvidia.health(machine)}
    for gpu in nvidia.ask(machine)[1]:
        if gpu.place.startswith(place.lower()) and gpu.index in health:
            said = health[gpu.index]
            rows = [said.text(f"remapped_rows.{name}") or "" for name in ("pending", "failure")]
            if set(rows) <= {"", "[N/A]", "N/A"}:  # before Ampere
                rows = [said.text("retired_pages.pending") or ""]
            errors = gpu.number("ecc.errors.uncorrected.volatile.total")
            return errors == 0 and all(row.lower() in ("no", "0") for row in rows)
    return False


def brought_back(machine: Machine) -> str | None:
    """How a lost GPU comes back to a virtual machine, or to a container; None: of this machine."""
    if limits.in_container(machine.root) or kind.is_lxc(machine):
        return "on the host: power it off and on; where you rent it, take another machine"
    if kind.is_guest(machine):
        return "stop and start this virtual machine; then ask who runs its host"
    return None
