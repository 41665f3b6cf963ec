"""The links between GPUs: as many are up as should be, and none is being trained again."""

from __future__ import annotations

import re

from doctor import distribution, kind
from doctor.finding import Finding, fail, ok, skip, warn
from host import nvidia, pci, visible
from host.machine import Machine

_GPU = re.compile(r"^GPU (\d+):(.*?)(?=^GPU |\Z)", re.MULTILINE | re.DOTALL)
# Up to Hopper, and from Blackwell on. Packets are sent again now and then; a link that is trained
# again is about to fail: on 320 GPUs one had such a counter, and its link failed five days later
# (https://github.com/marin-community/marin/issues/9086).
_TRAINED = re.compile(r"Link (\d+): (?:Recovery Errors|Total link recovery events): (\d+)")
_REPEATED = re.compile(r"Link (\d+): (?:Replay|CRC|CRC Flit|CRC Data) Errors: (\d+)")
# What is left after its own correction; 15e-254 stands for none.
_ERRORS = re.compile(r"Link (\d+): Effective BER: (\d{1,3}e-\d{1,3})")
_MOST = 1e-12
_SLOW = 0.95  # of the best
_OFF = re.compile(
    r"(?m)^\s*options\s+nvidia\s.*(?:NVreg_NvLinkDisable=1|RMNvLinkEnable=0x0\b)"
    r"|nvidia\.NVreg_NvLinkDisable=1"
)
_TWO = re.compile(r"G[VP]100\b")  # cards that take two bridges, or one
_BRIDGED = 4  # links of a card that takes one bridge
_DESKS = ("3", "4", "5", "6", "7")  # kinds of chassis
_MANY = 100  # packets sent again since the driver was loaded


def nvlink(machine: Machine) -> Finding:
    """As many NVLinks are up on each GPU as on the others."""
    gpus = visible.seen(machine)
    kinds: dict[str, list[str]] = {}
    for gpu in gpus:
        kinds.setdefault(gpu.name, []).append(gpu.index)
    name, same = max(kinds.items(), key=lambda pair: len(pair[1]), default=("", []))
    if len(same) < 2:
        return skip("NVLink", "fewer than two GPUs of a kind")
    up = {index: len(rates) for index, rates in _rates(machine).items() if index in same}
    most = max(up.values(), default=0)
    # Of cards with bridges some have none; boards are linked as a whole.
    board = nvidia.is_of_board(name)
    if not most:
        return _silent(machine, name, same) or skip("NVLink", "none is up")
    for index, count in up.items():
        if count < most and (count or board):
            unwell = warn if count else fail
            return unwell(
                "NVLink",
                f"GPU {index}: {count} of {most} links are up",
                "what the GPUs tell each other goes over fewer links, or over PCIe",
                "power the machine off and on, which trains the links anew; nvidia-smi nvlink -e;"
                " where it comes back, the board is to be replaced",
            )
    linked = sum(count > 0 for count in up.values())
    well = ok("NVLink", f"{most} links on {linked} of {len(same)} GPUs")
    return _slower(machine, same) or _unwell(machine, name, same) or well


def _unwell(machine: Machine, name: str, same: list[str]) -> Finding | None:
    """Links that are half up, or about to fail."""
    half = _half_bridged(machine, name, same)
    if half is not None:
        return warn(
            "NVLink",
            half,
            "the GPUs tell each other half of what they could at a time, and NCCL may hang",
            "power the machine off, and seat the bridge anew on both cards, all the way down",
        )
    worn = _worn(machine, same)
    if worn is not None:
        return warn(
            "NVLink",
            worn,
            "it slows all GPUs down, and often fails within days: then the training ends",
            "sudo dmesg | grep -iE 'xid.*(74|14[4-9]|150)'; have the board looked at, a bridge"
            " seated again; nvidia-smi nvlink -re sets the counters to 0",
        )
    return None


def _slower(machine: Machine, same: list[str]) -> Finding | None:
    """A GPU whose links have fewer GB/s than those of the others."""
    rates = {index: rates for index, rates in _rates(machine).items() if index in same and rates}
    best = max((max(each) for each in rates.values()), default=0.0)
    for index, each in rates.items():
        if min(each) < _SLOW * best:
            link = each.index(min(each))
            return warn(
                "NVLink",
                f"GPU {index}: link {link} has {min(each):g} GB/s, and others have {best:g}",
                "all GPUs wait for the slowest links",
                "with nothing running: sudo nvidia-smi -r, or reboot; if it stays, have the board"
                " looked at",
            )
    return None


def _out_of(machine: Machine, file: str) -> str:
    """How an option of the driver's is taken out of where it is set."""
    if file == "/proc/cmdline":
        return "take NVLink's option off the kernel's command line (boot entry)"
    return f"take NVLink's option out of {file}, sudo {distribution.initramfs(machine)}"


def _silent(machine: Machine, name: str, same: list[str]) -> Finding | None:
    """GPUs that come linked, and no link is up; on adapters for PCIe slots nothing joins them."""
    said = machine.run("nvidia-smi", "nvlink", "-s").out
    down = [index for index, rows in _GPU.findall(said) if "inactive" in rows.lower()]
    desk = (machine.read("/sys/class/dmi/id/chassis_type") or "").strip() in _DESKS
    station = "Station" in (machine.read("/sys/class/dmi/id/product_name") or "")
    # By boards for slots, in a case of one's own; Hyper-V calls its machines desktops.
    adapted = desk and not station and not kind.is_guest(machine)
    # Clouds have H100 NVL in pairs with a bridge; elsewhere that is bought for itself.
    paired = "H100 NVL" in name and kind.is_guest(machine)
    joined = (paired or nvidia.is_of_board(name)) and not adapted
    if not joined or not set(same) <= set(down):
        return None
    folder = "/etc/modprobe.d"
    files = [*(f"{folder}/{name}" for name in machine.names(folder)), "/proc/cmdline"]
    off = next((file for file in files if _OFF.search(machine.read(file) or "")), None)
    return warn(
        "NVLink",
        "no link is up, on none of the GPUs" + f": {off} switches them off" * bool(off),
        "what the GPUs tell each other goes over PCIe, many times slower",
        f"{_out_of(machine, off)}, and reboot; on a board with switches nvidia-fabricmanager must"
        " run then"
        if off
        else "sudo reboot: a driver that was loaded before all GPUs were there finds no links;"
        " on a board with switches also nvidia-fabricmanager; in a virtual machine ask its host",
    )


def between(machine: Machine) -> tuple[float, str] | None:
    """GB/s each way between the GPUs that CUDA sees, at the narrowest place, and over what.

    None where that is not known: of one GPU, of those outside of the case.
    """
    gpus = visible.seen(machine)
    if len(gpus) < 2:
        return None
    links = _rates(machine)
    sums = [sum(links.get(gpu.index, ())) for gpu in gpus]
    # A bridge joins two, and not the others.
    if min(sums) > 0 and (len(gpus) == 2 or nvidia.is_of_board(gpus[0].name)):
        return min(sums), "NVLink"
    cards = {card.address: card for card in pci.cards(machine)}
    own = [cards[gpu.place] for gpu in gpus if gpu.place in cards]
    ways = [card.reachable for card in own if not pci.is_removable(machine, card)]
    known = [way for way in ways if way is not None and way.rate > 0]
    if len(known) < len(gpus):
        return None
    narrow = min(known, key=lambda way: way.rate)
    return narrow.rate, str(narrow)


def _rates(machine: Machine) -> dict[str, list[float]]:
    """By GPU, GB/s each way of the links that are up."""
    said = machine.run("nvidia-smi", "nvlink", "-s").out
    return {
        index: [float(rate) for rate in re.findall(r"Link \d+: (\d+(?:\.\d+)?) GB/s", rows)]
        for index, rows in _GPU.findall(said)
    }


def _half_bridged(machine: Machine, name: str, indices: list[str]) -> str | None:
    """A card whose bridge carries some of its links; None where there is none. A bridge has up to
    four, which are all that such a card has.
    """
    for index, rows in _GPU.findall(machine.run("nvidia-smi", "nvlink", "-s").out):
        up = len(re.findall(r"Link \d+: \d+(?:\.\d+)? GB/s", rows))
        down = len(re.findall(r"Link \d+: <inactive>", rows))
        if index in indices and up and down and up + down <= _BRIDGED and not _TWO.search(name):
            return f"GPU {index}: {up} of {up + down} links of its bridge are up"
    return None


def _worn(machine: Machine, indices: list[str]) -> str | None:
    """What the links' counters say of one that is about to fail; None where all is well."""
    said = machine.run("nvidia-smi", "nvlink", "-e").out
    for sign, least, what in (
        (_TRAINED, 1, "was trained again {} times"),
        (_REPEATED, _MANY, "sent {} packets again"),
    ):
        for index, rows in _GPU.findall(said):
            for link, count in sign.findall(rows):
                if index in indices and int(count) >= least:
                    return f"GPU {index}: link {link} {what.format(count)}"
    for index, rows in _GPU.findall(said):
        for link, share in _ERRORS.findall(rows):
            if index in indices and float(share) > _MOST:
                return f"GPU {index}: link {link} has an error in 1 of {1 / float(share):.0e} bits"
    return None
