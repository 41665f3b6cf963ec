"""What `nvidia-smi -q` says of GPUs, and no row that can be asked for."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, warn
from host import limits, visible
from host.machine import Machine
from host.text import number

_REPLAYS = 10_000  # packets sent again; a sound link counts some hundred
_RETIRED = 60  # pages; there is room for 64
_LESS = 0.95  # of the usual clock
_HEALTH = "Fabric/Health/"
# Whether it trains; what the answer calls it, its value; what is seen, what it means, what helps.
_SIGNS = (
    (
        "fail",
        "ECC Errors/Aggregate/SRAM Threshold Exceeded",
        "Yes",
        "more errors in its SRAM than it may have",
        "it will compute wrongly, or end programs",
        "have it replaced; until then hide it with CUDA_VISIBLE_DEVICES",
    ),
    (
        # Drivers from 565 on say it in gpu_recovery_action, and here that it is deprecated.
        "fail",
        "GPU Reset Status/Reset Required",
        "Yes",
        "the driver wants it reset",
        "until then programs on it fail or hang",
        "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot",
    ),
    (
        "fail",
        r"(?:.*/)?Unrepairable Memory",
        "Yes",
        "a part of its memory cannot be repaired",
        "its memory is worn out: weights may be wrong, programs end",
        "have it replaced; until then hide it with CUDA_VISIBLE_DEVICES",
    ),
    (
        "warn",
        r"(?:.*/)?(?:Channel|TPC) Repair Pending",
        "Yes|GPU requires reset",
        "a part of it waits to be repaired ({name})",
        "the next reset does it; until then errors may come back",
        "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot",
    ),
    (
        "warn",
        "GPU Reset Status/Drain and Reset Recommended",
        "Yes",
        "the driver wants it reset, once nothing runs on it",
        "it has lost something that a reset brings back",
        "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot",
    ),
    (
        "warn",
        f"{_HEALTH}Bandwidth",
        "Degraded",
        "the fabric says that its NVLink has lost bandwidth",
        "collectives are slower, and all wait for it",
        "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; then have switches looked at",
    ),
    (
        "warn",
        f"{_HEALTH}(Route Unhealthy|Route Recovery in progress|Access Timeout Recovery)",
        "True",
        "the fabric's way to it is not well: {name}",
        "GPUs that talk to it may hang",
        "look again in a minute; if it stays: sudo nvidia-smi --gpu-reset -i {gpu}",
    ),
    (
        "warn",
        f"{_HEALTH}Incorrect Configuration",
        "(?!None|N/A|Not Supported).+",
        "the fabric was set up wrongly for it: {value}",
        "GPUs of several machines do not reach each other over NVLink",
        "have whoever runs the rack mend it: nvidia-imex, and the switches' configuration",
    ),
    (
        "warn",
        r"Clocks (Throttle|Event) Reasons/Sync Boost",
        "Active",
        "it waits for the clocks of other GPUs (sync boost)",
        "it computes slower than it could",
        "take it out of its group: dcgmi config --set -s 0; or reboot",
    ),
)


def worst(machine: Machine) -> Finding | None:
    """The first sign of a GPU that is unwell, or set to compute slower than it could."""
    seen = {gpu.place: gpu for gpu in visible.seen(machine)}
    if not seen:
        return None
    told = {at: said for at, said in _told(machine).items() if at in seen}
    for status, path, sign, what, why, fix in _SIGNS:
        for at, said in told.items():
            for name, value in said.items():
                if re.fullmatch(path, name) and re.fullmatch(sign, value, re.IGNORECASE):
                    unwell = fail if status == "fail" else warn
                    row = what.format(value=value, name=name.rsplit("/", 1)[-1].lower())
                    label, index = seen[at].label, seen[at].index
                    helps = _where(machine, fix.format(gpu=index))
                    return unwell("GPU health", f"{label}: {row}", why, helps)
    for at, said in told.items():
        found = _pending(said) or _retired(said) or _replayed(said) or _clocked(said)
        if found is not None:
            row, why, fix = found
            helps = _where(machine, fix.format(gpu=seen[at].index))
            return warn("GPU health", f"{seen[at].label}: {row}", why, helps)
    return None


def replaced(machine: Machine, place: str) -> int:
    """How many rows of a GPU's memory were replaced after errors that could not be corrected; 0
    where its banks are known to have spare ones left.
    """
    said = _told(machine).get(place, {})
    banks = "Remapped Rows/Bank Remap Availability Histogram"
    if number((said.get(f"{banks}/None") or "").split(" ")[0]) == 0:
        return 0
    return int(number(said.get("Remapped Rows/Uncorrectable Error")) or 0)


def _where(machine: Machine, fix: str) -> str:
    """A fix, which no container may carry out."""
    inside = limits.in_container(machine.root)
    return f"on the machine itself: {fix}" if inside and "nvidia-smi" in fix else fix


def _pending(said: dict[str, str]) -> tuple[str, str, str] | None:
    now, then = (said.get(f"ECC Mode/{word}", "") for word in ("Current", "Pending"))
    if {now, then} != {"Enabled", "Disabled"}:
        return None
    return (
        f"error correction (ECC) is {now.lower()}, and will be {then.lower()} at the next reset",
        "somebody has changed it, and nothing has been reset since",
        "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot",
    )


def _retired(said: dict[str, str]) -> tuple[str, str, str] | None:
    counts = [number(said.get(f"Retired Pages/{word} Bit ECC")) for word in ("Single", "Double")]
    total = int(sum(count or 0 for count in counts))
    if total < _RETIRED:
        return None
    return (
        f"{total} pages of its memory are retired, and there is room for 64",
        "its memory is worn out: the next errors stay",
        "have it replaced; until then hide it with CUDA_VISIBLE_DEVICES",
    )


def _replayed(said: dict[str, str]) -> tuple[str, str, str] | None:
    count = number(said.get("PCI/Replays Since Reset")) or 0
    if count < _REPLAYS:
        return None
    return (
        f"its PCIe link had to send {count:,.0f} packets again",
        "a bad contact or cable: copies are slower, and the GPU may fall off the bus",
        "seat the card again, leave out a riser; sudo dmesg | grep -i aer",
    )


def _clocked(said: dict[str, str]) -> tuple[str, str, str] | None:
    now, usual = (
        number(said.get(f"{word}Applications Clocks/Graphics")) for word in ("", "Default ")
    )
    if not now or not usual or now >= _LESS * usual:
        return None
    return (
        f"its clock under load is set to {now:.0f} MHz, and {usual:.0f} is usual",
        "it computes slower than it could",
        "sudo nvidia-smi -i {gpu} -rac   # unless that is meant",
    )


def _told(machine: Machine) -> dict[str, dict[str, str]]:
    """For each GPU by its place on the bus, the values by their path: `PCI/Bus`."""
    found: dict[str, dict[str, str]] = {}
    path: list[tuple[int, str]] = []
    at = None
    for line in machine.run("nvidia-smi", "-q").out.splitlines():
        card = re.match(r"GPU ([0-9A-Fa-f]{8}):(\S+)\s*$", line)
        if card is not None:
            at = f"{card.group(1)[-4:]}:{card.group(2)}".lower()
            found[at], path = {}, []
            continue
        name, colon, value = line.strip().partition(" : ")
        deep = len(line) - len(line.lstrip())
        if at is None or not name:
            continue
        path = [(depth, word) for depth, word in path if depth < deep]
        if colon:
            found[at]["/".join([*(word for _, word in path), name.strip()])] = value.strip()
        path.append((deep, name.strip()))
    return found
