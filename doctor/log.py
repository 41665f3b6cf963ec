"""What the kernel's log of this boot says of GPUs, and what NVIDIA's error numbers mean.

https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import kernel
from host.machine import Machine

_ASK = (("dmesg",), ("journalctl", "-k", "-b", "-q", "--no-pager"))
_RESET = "sudo nvidia-smi --gpu-reset -i {gpu}, or reboot"
_REPLACE = "have the card replaced; until then hide it with CUDA_VISIBLE_DEVICES"
_POWER = "power the machine off and on; then look at plugs, riser and cooling"
# Number: whether a training can still be had, what it means, what helps. Those that are missing
# are mostly faults of the program that ran.
_MEANING = {
    48: ("warn", "an error in its memory that could not be corrected", _RESET),
    61: ("warn", "its own controller stopped", _RESET),
    62: ("warn", "its own controller stopped", _RESET),
    63: ("warn", "a row of its memory is to be replaced by a spare one, at the next reset", _RESET),
    64: ("fail", "a row of its memory could not be replaced", _REPLACE),
    74: ("warn", "an error on NVLink: a bridge, a cable, or the switch", _RESET),
    79: ("fail", "the GPU has fallen off the bus: power, heat, riser or the card itself", _POWER),
    92: ("warn", "very many errors in its memory were corrected", _REPLACE),
    94: ("warn", "an error in its memory ended one program", _RESET),
    95: ("fail", "an error in its memory that may have reached any program", _RESET),
    119: ("fail", "its firmware (GSP) does not answer", f"{_RESET}; update the driver"),
    120: ("fail", "its firmware (GSP) stopped", f"{_RESET}; update the driver"),
    136: ("warn", "NVLink could not be set up", _RESET),
    140: ("warn", "errors in its memory that could not be corrected", _RESET),
    145: ("warn", "an error on NVLink", _RESET),
    149: ("fail", "NVLink of it has failed", _RESET),
    143: ("fail", "it could not be initialised", _RESET),
    154: ("fail", "the driver asks for a reset or a reboot", _RESET),
}


def lines(machine: Machine) -> list[str] | None:
    """The kernel's log of this boot; None where this user may not read it."""
    for words in _ASK:
        answer = machine.run(*words)
        if answer.code == 0 and answer.out.strip():
            return answer.out.splitlines()
    return None


def last(machine: Machine, sign: str) -> str | None:
    """The last line of the log with a sign in it."""
    found = [line for line in lines(machine) or [] if re.search(sign, line, re.IGNORECASE)]
    return found[-1] if found else None


def errors(machine: Machine) -> Finding:
    """No GPU has failed since the machine was started."""
    said = lines(machine)
    if said is None:
        return skip("kernel log", "not known: this user may not read it (sudo dmesg)")
    found = [x for x in map(kernel.XID.search, said) if x]
    worst = None
    for each in found:
        number = int(each.group(2))
        status, meaning, fix = _MEANING.get(number, ("", "", ""))
        if number == 154 and re.search(r"\(None\)|to 0x0\b", each.group(3)):
            continue
        if status and (worst is None or status == "fail" or worst[0] == "warn"):
            worst = (status, number, each.group(1), meaning, fix)
    off = kernel.OFF.search("\n".join(said))
    if off and (worst is None or worst[1] != 79):
        seen = f"GPU {off.group(1)} has fallen off the bus"
        return fail("kernel log", seen, _MEANING[79][1], _POWER)
    if worst is None:
        count = len(found)
        seen = f"{count} error{'s' * (count != 1)} of programs" if found else "no GPU has failed"
        return ok("kernel log", seen)
    status, number, place, meaning, fix = worst
    unwell = fail if status == "fail" else warn
    many = sum(int(each.group(2)) == number for each in found)
    seen = f"Xid {number} of GPU {place}{f', {many} times' if many > 1 else ''}"
    # nvidia-smi takes an address only whole.
    whole_place = place if "." in place else f"{place}.0"
    return unwell("kernel log", seen, meaning, fix.format(gpu=whole_place))
