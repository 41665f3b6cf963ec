"""What the kernel's log of this boot says of GPUs, and what NVIDIA's error numbers mean.

https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import re
from functools import lru_cache

from doctor import faults, over, surroundings
from doctor.finding import Finding, fail, ok, skip, warn
from doctor.xids import MEANING, REPLACE
from host import apps, kernel, limits, nvidia, pci
from host.machine import Machine

_SM = re.compile(r"GPC \d+, TPC \d+, SM \d+")
_PID = re.compile(r"pid=\d+")
_BUSY = 90  # per cent
_FIRST, _LAST = 3_000, 6_000  # rows
_TELLING = re.compile(  # also what tells that it is over
    "NVRM|nvidia|[Oo]ut of memory|[Ee]rror|blocked for more than|PM: (?:suspend|hibernation)"
    "|XFS|EXT4-fs|BTRFS|nfs: server|Lustre|ceph|CIFS|device-mapper: thin|USB disconnect|removed"
)
_ASK = (("dmesg",), ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"))
_LOST, _ASKED = 79, 154
_IN_USE = "; where it says in use, end that first: a screen, nvidia-persistenced, DCGM"
_REBOOT = r"(?:to 0x\w+ \(|action: )Node Reboot Required"
ASLEEP = (
    "it sleeps, and does not wake (D3cold)",
    "what switches it off (bbswitch, power management) does not switch it on again",
    (
        "power the machine off and on; then keep it awake: echo on | sudo tee"
        " /sys/bus/pci/devices/*/power/control, or options nvidia NVreg_DynamicPowerManagement=0x00"
        " in /etc/modprobe.d; remove bbswitch; update the BIOS"
    ),
)
"""What is seen, why, and what helps where a card's power is not switched on again."""
_SLEEPS = r"nvidia (\S+): (Unable to|Refused to|can't) change power state"
_PROGRAMS = 3  # that were started
_PAGED = 590  # the first driver
_WAITS = "NV_ERR_RESET_REQUIRED"


@lru_cache(maxsize=1)  # many checks ask, each of the same machine
def lines(machine: Machine) -> list[str] | None:
    """The kernel's log of this boot; None where this user may not read it. Of a very long one, how
    it begins and how it ends, and what between these is of GPUs or an error.
    """
    answers = (machine.run(*words) for words in _ASK)
    said: list[str] = []
    for answer in answers:
        rows = answer.out.splitlines() if answer.code == 0 else []
        whole = any("Linux version" in row for row in rows[:5])
        said = rows if whole else max(said, rows, key=len)
        begun = re.match(r"\[ *(\d+)\.", said[0] if said else "")
        if said and (begun is None or begun.group(1) == "0"):
            break  # else what came first was overwritten, and the journal may have it
    if len(said) > _FIRST + _LAST:
        middle = [row for row in said[_FIRST:-_LAST] if _TELLING.search(row)]
        said = said[:_FIRST] + middle[-_LAST:] + said[-_LAST:]
    return said or None


def last(machine: Machine, sign: str) -> str | None:
    """The last line of the log with a sign in it."""
    found = [line for line in lines(machine) or [] if re.search(sign, line, re.IGNORECASE)]
    return found[-1] if found else None


# Of one GPU after the other it came where AMD's IOMMU stood between them.
_STOPPED, _MANY = 61, 3  # the Xid, and GPUs


def errors(machine: Machine) -> Finding:
    """No GPU has failed since the machine was started.

    A reset mends most of it and stays silent: whether a GPU is unwell now, the GPU's own rows say.
    """
    said = lines(machine)
    if said is None:
        return skip("kernel log", "not known: this user may not read it (sudo dmesg)")
    now = over.since_loaded(machine, said)
    found = [x for x in map(kernel.XID.search, now) if x and faults.is_ours(machine, x.group(1))]
    other = faults.found(machine, said)
    if other is not None:
        return other
    places = {each.group(1) for each in found}
    failures = [
        each for place in sorted(places) for each in over.since_reset(machine, found, place)
    ]
    off = kernel.OFF.search("\n".join(now))
    if (
        off
        and faults.is_ours(machine, off.group(1))
        and not any(int(x.group(2)) == _LOST for x in failures)
    ):
        seen = f"GPU {off.group(1)} has fallen off the bus"
        return fail("kernel log", seen, *MEANING[_LOST])
    more = len(pci.cards(machine)) > len(nvidia.ask(machine)[1])
    given = limits.in_container(machine.root) and more  # a row of another one says no address
    if not failures and not given and any(_WAITS in line for line in now):
        return fail(
            "kernel log",
            f"a GPU waits for a reset ({_WAITS})",
            "nvidia-smi lists it as sound, and CUDA says busy or unavailable",
            "sudo nvidia-smi --gpu-reset -i N of the one that CUDA calls busy, or reboot; if it"
            " comes back, have the machine serviced",
        )
    if not failures:
        count = len(found)
        seen = f"{count} Xids, all of programs" if count else "no GPU has failed"
        seen += faults.slept(machine, said)
        other = (
            _falling(machine, said)
            or _paged(machine, found)
            or _of_one(found)
            or _of_one_sm(machine, found)
        )
        other = other or _timed_out(machine, found)
        other = other or surroundings.found(machine, said)
        return other or ok("kernel log", seen)
    # The cause comes before what the driver then asks for.
    worst = max(failures, key=lambda x: _weight(int(x.group(2))))
    number, place = int(worst.group(2)), worst.group(1)
    meaning, fix = MEANING[number]
    fix += _IN_USE * ("--gpu-reset" in fix)
    asked = [x.group(3) for x in failures if x.group(1) == place and int(x.group(2)) == _ASKED]
    if asked and re.search(_REBOOT, asked[-1]) and "--gpu-reset" in fix:
        fix = "sudo reboot (a reset will not do, says Xid 154); if it hangs, power it off and on"
    asleep = {x.group(1) for x in map(re.compile(_SLEEPS).search, said) if x}
    if number == _LOST and any(each.startswith(place) for each in asleep):
        meaning, fix = ASLEEP[0], ASLEEP[2]
    many = sum(x.group(1, 2) == worst.group(1, 2) for x in failures)
    seen = f"Xid {number} of GPU {place}{f', {many} times' if many > 1 else ''}"
    # nvidia-smi takes an address only whole.
    whole_place = place if "." in place else f"{place}.0"
    unwell = fail if number == _LOST else warn
    if number == _LOST and not asleep:
        fix = over.brought_back(machine) or fix
    alike = len({x.group(1) for x in failures if x.group(2) == worst.group(2)})
    if number == _STOPPED and alike >= _MANY:
        seen += f", and of {alike - 1} others"
        meaning = "on so many GPUs it is hardly theirs, but of what they share"
        fix = "in the BIOS: IOMMU Disabled (AMD's boards), or boot with iommu=pt; a newer BIOS"
    return unwell("kernel log", seen, meaning, fix.format(gpu=whole_place))


def _falling(machine: Machine, said: list[str]) -> Finding | None:
    """A GPU falls off the bus again and again, and the driver is loaded anew each time."""
    place, times = over.falls_again(said) or ("", 0)
    if not times or not faults.is_ours(machine, place):
        return None
    return warn(
        "kernel log",
        f"GPU {place} has fallen off the bus {times} times, and came back with the driver",
        "loading it anew mends neither power nor riser nor heat: it falls off again",
        MEANING[_LOST][1],
    )


def _weight(number: int) -> tuple[bool, bool, bool]:
    """How much a fault says: that the GPU is lost, that it is to be replaced, or more than that."""
    return number == _LOST, MEANING[number][1] == REPLACE, number != _ASKED


def _paged(machine: Machine, found: list[re.Match[str]]) -> Finding | None:
    """Faults that a program has no part in.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1269
    """
    major = (nvidia.loaded(machine) or "").split(".")[0]
    pages = machine.run("getconf", "PAGESIZE").out.strip()
    faulted = [each for each in found if each.group(2) == "31" and "FAULT_PTE" in each.group(3)]
    if not faulted or pages != "65536" or not major.isdecimal() or int(major) < _PAGED:
        return None
    return warn(
        "kernel log",
        f"Xid 31 (FAULT_PTE) of GPU {faulted[-1].group(1)}, {len(faulted)} times, under driver"
        f" {major} and a kernel with pages of 64 KiB",
        "such drivers lose what is larger than 4 GiB there: programs end, and are not to blame",
        "install driver 580, or boot a kernel with pages of 4 KiB",
    )


def _of_one_sm(machine: Machine, found: list[re.Match[str]]) -> Finding | None:
    """Programs end in one and the same part of one GPU, which is busy without any.

    https://github.com/pytorch/pytorch/issues/51382
    """
    told = [(x.group(1), x.group(3)) for x in found if x.group(2) == "13"]
    parts = [(place, _SM.search(text), _PID.search(text)) for place, text in told]
    where = {(place, sm.group()) for place, sm, _ in parts if sm}
    programs = {pid.group() for _, _, pid in parts if pid}
    if len(where) != 1 or len(programs) < 2 or len({place for place, _, _ in parts}) != 1:
        return None
    place, part = next(iter(where))
    gpus = [gpu for gpu in nvidia.ask(machine)[1] if gpu.place.startswith(place.lower())]
    idle = gpus and not any(app.uuid == gpus[0].text("uuid") for app in apps.computing(machine))
    if not idle:
        return None
    busy = {gpu.index: gpu.number("utilization.gpu") for gpu in nvidia.health(machine)}
    if (busy.get(gpus[0].index) or 0) < _BUSY:
        return None
    return warn(
        "kernel log",
        f"Xid 13 of GPU {place} alone, {len(told)} times, at {part}, and it is busy without a"
        " program",
        "that part of it fails: programs end there that run on other GPUs",
        "run it on another GPU to compare; have this one replaced; until then hide it with"
        " CUDA_VISIBLE_DEVICES",
    )


def _of_one(found: list[re.Match[str]]) -> Finding | None:
    """One and the same part of one GPU faults under several programs, and others computed, too."""
    faulted = [each for each in found if each.group(2) == "31"]
    places = {each.group(1) for each in faulted}
    # Old drivers name none. What copies is the same part whoever is to blame.
    programs = {x.group() for each in faulted if (x := re.search(r"name=[^,]+", each.group(3)))}
    started = {x.group() for each in faulted if (x := re.search(r"pid=\d+", each.group(3)))}
    parts = {x.group() for each in faulted if (x := re.search(r"ENGINE \S+ GPC\S+", each.group(3)))}
    computed = {each.group(1) for each in found} - places
    if len(places) != 1 or len(parts) != 1 or not computed:
        return None
    if len(started) < _PROGRAMS or len(programs) == 1:
        return None
    return warn(
        "kernel log",
        f"Xid 31 of GPU {places.pop()} alone, {len(started)} times, at {parts.pop()}",
        "where the same program runs on the other GPUs, it is the card and not the program",
        "make doctor ARGS='--stress 5'; hide it with CUDA_VISIBLE_DEVICES, and have it replaced",
    )


def _timed_out(machine: Machine, found: list[re.Match[str]]) -> Finding | None:
    """A program was ended since the screen wanted the GPU."""
    rows = nvidia.ask(machine)[1]
    shown = {gpu.place for gpu in rows if gpu.text("display_active") == "Enabled"}
    ended = [x for x in found if x.group(2) == "8" and not apps.draws(over.named(x))]
    ended = [x for x in ended if any(place.startswith(x.group(1).lower()) for place in shown)]
    if not ended:
        return None
    return warn(
        "kernel log",
        f"Xid 8 of GPU {ended[-1].group(1)}, which a screen is attached to",
        "what computed too long for the screen was ended (the launch timed out)",
        "the screen on another GPU (the processor's own), or a smaller batch; over ssh, where"
        " nothing else runs in the desktop: sudo systemctl stop display-manager",
    )
