"""Processors of the machine that are switched off, or slower than they could be."""

from __future__ import annotations

import re

from doctor import kind, log
from doctor.finding import Finding, warn
from host import limits
from host.machine import Machine
from host.text import whole

_CPUS = "/sys/devices/system/cpu"
_LOW = 0.5  # of its base clock; where that is not told, of the most
_HOT, _HEATED = 0.1, 10_000  # of the time; times
_HEAT = r"temperature (?:is )?above threshold, cpu clock (?:is )?throttled \(total events = (\d+)"
# Whose powersave is the lowest clock.
_FIXED = ("acpi-cpufreq", "cppc_cpufreq", "pcc-cpufreq", "intel_cpufreq", "amd-pstate")
_OFF = ("off", "forceoff")  # second threads of cores, which the machine's owner does not want


def held(machine: Machine) -> Finding | None:
    """They are kept at a low clock: by what scales them, or by a firmware that misses its charger.

    https://docs.kernel.org/admin-guide/pm/cpufreq.html
    """
    folder = f"{_CPUS}/cpu0/cpufreq"
    most, best, base, least, now = (
        whole(machine.read(f"{folder}/{name}")) or 0
        for name in (
            *("scaling_max_freq", "cpuinfo_max_freq", "base_frequency"),
            *("cpuinfo_min_freq", "scaling_cur_freq"),
        )
    )
    # One that idles may well stand below it.
    each = [name for name in machine.names(_CPUS) if re.match(r"cpu\d+$", name)]
    now = max(
        [now, *(whole(machine.read(f"{_CPUS}/{n}/cpufreq/scaling_cur_freq")) or 0 for n in each)]
    )
    driver = (machine.read(f"{folder}/scaling_driver") or "").strip()
    governor = (machine.read(f"{folder}/scaling_governor") or "").strip()
    # Without its turbo, which is a choice, a processor has its base.
    turbo = machine.read(f"{_CPUS}/intel_pstate/no_turbo") != "1"
    turbo = turbo and machine.read(f"{_CPUS}/cpufreq/boost") != "0"
    why, fix = None, "sudo cpupower frequency-set -g performance"
    if turbo and 0 < most < _LOW * (base or best):
        why = f"kept below {most / 1e6:.1f} of {best / 1e6:.1f} GHz (scaling_max_freq)"
        fix = f"sudo cpupower frequency-set -u {best}kHz"
    elif governor == "powersave" and driver in _FIXED and now and now <= least * 1.05:
        why = f"kept at {now / 1e6:.1f} of {best / 1e6:.1f} GHz by the governor powersave"
    share = whole(machine.read(f"{_CPUS}/intel_pstate/max_perf_pct")) or 100
    if why is None and share < 100 * _LOW:
        why = f"kept at {share} % of their best (max_perf_pct)"
        fix = f"echo 100 | sudo tee {_CPUS}/intel_pstate/max_perf_pct"
    if why is None and kind.is_laptop(machine) and 0 < now < _LOW * least:
        why = f"kept at {now / 1e6:.1f} GHz, below the least that it has ({least / 1e6:.1f})"
        fix = (
            "its firmware misses the charger: the one that came with it, power drained, a new BIOS"
        )
    if why is None:
        return None
    return warn(
        "CPUs",
        why,
        "loaders and launches are slow: the GPUs wait",
        f"{fix}; for good in what set it (tuned-adm profile, TLP, auto-cpufreq)",
    )


def heated(machine: Machine) -> Finding | None:
    """Heat has held them back for a good part of the time since the start.

    https://docs.kernel.org/admin-guide/thermal/intel_thermal_throttle.html
    """
    if kind.is_laptop(machine) or limits.in_container(machine.root):
        return None
    times = [
        whole(machine.read(f"{_CPUS}/{name}/thermal_throttle/package_throttle_total_time_ms"))
        for name in machine.names(_CPUS)
        if re.fullmatch(r"cpu\d+", name)
    ]
    known, since = [each for each in times if each is not None], machine.uptime() or 0
    if known and since:
        share = max(known) / 1000 / since
        seen = f"held back by heat for {min(share, 1):.0%} of the time" if share > _HOT else None
    else:
        row = log.last(machine, _HEAT) or ""
        events = int((re.search(_HEAT, row) or ["", "0"])[1])
        often = events > _HEATED * max(1.0, since / 86400)
        seen = f"held back by heat, {events:,} times (kernel log)" if often else None
    if seen is None:
        return None
    return warn(
        "CPUs",
        seen,
        "loaders and launches are slow: the GPUs wait",
        "see to the processor's cooler, its paste, its fan and the air in the case",
    )


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
