"""Processors of the machine that are switched off."""

from __future__ import annotations

from doctor import kind
from doctor.finding import Finding, warn
from host import limits
from host.machine import Machine

_CPUS = "/sys/devices/system/cpu"
_OFF = ("off", "forceoff")  # second threads of cores, which the machine's owner does not want


def some(machine: Machine) -> Finding | None:
    """Fewer run than are there, and nobody has switched off second threads alone."""
    there, run = limits.present(machine.root), limits.online(machine.root)
    wanted = (machine.read(f"{_CPUS}/smt/control") or "").strip() in _OFF
    given = kind.is_guest(machine) or kind.is_lxc(machine) or limits.in_container(machine.root)
    # One thread of each core may be switched off one by one as well.
    if not there or not run or run >= there or wanted or there == 2 * run or given:
        return None
    jetson = kind.is_jetson(machine)
    return warn(
        "CPUs",
        f"{there - run} of {there} are switched off",
        "the board is in a mode of less power, and its GPU may be slower as well"
        if jetson
        else "loaders and CPU training have fewer than the machine has",
        "sudo nvpmodel -q says the mode; sudo nvpmodel -m 0 has all, and sudo jetson_clocks"
        if jetson
        else f"echo 1 | sudo tee {_CPUS}/cpu*/online; where they stay off, a reboot; else have the"
        " machine looked at",
    )
