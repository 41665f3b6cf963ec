"""How the machine went down before: a power supply that is too weak leaves no other trace."""

from __future__ import annotations

import re

from doctor import kind, log
from doctor.finding import Finding, ok, skip, warn
from host import limits, pci
from host.machine import Machine

_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_ROW = re.compile(
    r"^(reboot|shutdown) +system (?:boot|down)\b.*? [A-Z][a-z]{2} ([A-Z][a-z]{2}) +([0-9]{1,2}) ",
    re.MULTILINE,
)
_RESET = re.compile(
    r"reset reason \[0x\w+\]: (an uncorrected error caused a data fabric sync flood event"
    r"|.*\bthermal (?:pin|limit)\b.*)"
)
_BOOTS = 3  # that are looked at
_DAYS = 7


def last(machine: Machine) -> Finding:
    """The last boots came after a shutdown each."""
    name = "last boots"
    if limits.in_container(machine.root) or not pci.cards(machine):
        return skip(name, "no GPU of this machine's own")
    if kind.is_guest(machine) or kind.is_lxc(machine):
        return skip(name, "a virtual machine or LXC, which its host switches off")
    said = machine.run("last", "-x", seconds=5).out
    rows = _ROW.findall(_as_before(said))
    # Kernels before 6.18 do not clear the register: it may be of a boot before that.
    orderly = [row[0] for row in rows[:2]] == ["reboot", "shutdown"]
    reset = None if orderly else _reset(machine) or _recorded(machine)
    if reset is not None:
        return reset
    boots = [place for place, row in enumerate(rows[:-1]) if row[0] == "reboot"][:_BOOTS]
    if not boots:
        return skip(name, "not known: last -x tells of none before")
    newest = _day(rows[0][1], rows[0][2])
    sudden = [
        place
        for place in boots
        if rows[place + 1][0] == "reboot" and (newest - _day(*rows[place][1:])) % 366 <= _DAYS
    ]
    if len(sudden) < 2 or (machine.uptime() or 0) > _DAYS * 86400:
        many = f"{len(sudden)} of the last {len(boots)} without a shutdown before"
        return ok(name, many if sudden else "each after a shutdown")
    return warn(
        name,
        f"{len(sudden)} of the last {len(boots)} came without a shutdown before (last -x)",
        "the machine went down by itself, or was switched off: GPUs' peaks of power are too much"
        " for the power supply, heat, or the kernel stopped",
        "sudo journalctl -b -1 -e   # its last words; where there are none, try sudo nvidia-smi -pl"
        " WATTS, each GPU at a cable of its own, and a larger power supply",
    )


def _as_before(said: str) -> str:
    """What the newer `last` of wtmpdb says, in the order of the older one: it writes the end of a
    boot below it, and says crash where there was none.

    https://github.com/thkukuk/wtmpdb
    """
    if "wtmpdb begins" not in said and "wtmp.db begins" not in said:
        return said
    rows = [row for row in said.splitlines() if not row.startswith("shutdown")]
    told = []
    for row in rows:
        orderly = row.startswith("reboot") and "- crash" not in row and "still running" not in row
        told += [re.sub(r"^reboot +system boot", "shutdown system down", row)] * orderly + [row]
    return "\n".join(told)


def _reset(machine: Machine) -> Finding | None:
    """What AMD's processors say of the reset before this boot, as kernels from 6.16 on tell.

    https://docs.kernel.org/arch/x86/amd-debugging.html
    """
    told = _RESET.search(log.last(machine, "Previous system reset reason") or "")
    if told is None:
        return None
    heat = "thermal" in told.group(1)
    return warn(
        "last boots",
        f"the last one came after a reset by the hardware: {told.group(1)}",
        "the processor was too hot: the machine switched itself off"
        if heat
        else "memory, a processor or a card reported an error that could not be corrected",
        "see to the processor's cooler, its paste and its fan"
        if heat
        else "memory at its rated speed (EXPO, XMP off), the newest BIOS, no riser; where it comes"
        " back, memtest86+ for a night, another power supply",
    )


def _recorded(machine: Machine) -> Finding | None:
    """What the firmware recorded of a fatal error, of which the boot before ended (BERT).

    https://docs.kernel.org/firmware-guide/acpi/apei/output_format.html
    """
    rows = log.lines(machine) or []
    begun = next((n for n, row in enumerate(rows) if "BERT: Error records from prev" in row), None)
    record = "\n".join(rows[begun : begun + 40]) if begun is not None else ""
    kind_of = re.search(r"section_?type: (PCIe|memory|general processor)", record)
    if "event severity: fatal" not in record or kind_of is None:
        return None
    return warn(
        "last boots",
        f"the boot before ended with a fatal error of the hardware ({kind_of.group(1)})",
        "the firmware has recorded it: BERT in sudo dmesg says of which device",
        "seat card and riser again, a lower PCIe generation in the BIOS; the newest BIOS; where it"
        " comes back, memtest86+ for a night, another power supply",
    )


def _day(month: str, day: str) -> int:
    """About the day of the year: months of 30.5 days do."""
    return int(max(0, _MONTHS.find(month)) / 3 * 30.5) + int(day)
