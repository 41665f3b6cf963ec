"""The clock: right, cheap to read, and following a server."""

from __future__ import annotations

from doctor import log, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host.machine import Machine
from host.text import whole

# The lock's oldest package is younger: a clock before this fails every certificate.
_YOUNGEST = 1767225600  # 2026-01-01
_CHOICE = "available_clocksource"
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_ASTRAY = 300  # seconds


def clock(machine: Machine) -> Finding:
    """The clock is not years behind."""
    said = machine.run("date", "-u", "+%s").out.strip()
    now = whole(said)
    if now is None:
        return skip("clock", "not known on this system")
    if now < _YOUNGEST:
        return fail(
            "clock",
            "it is years behind",
            "certificates look as if they were not valid yet",
            "sudo timedatectl set-ntp true; where it stays so, systemctl status systemd-timesyncd"
            " says why; until then sudo date -s 'YEAR-MONTH-DAY HOUR:MINUTE'",
        )
    hardware = whole(machine.read("/sys/class/rtc/rtc0/since_epoch"))
    # Elsewhere the hardware's may be kept in local time.
    if wsl.is_windows(machine) and hardware is not None and abs(now - hardware) > _ASTRAY:
        side = "behind" if now < hardware else "before"
        return warn(
            "clock",
            f"{abs(now - hardware) / 3600:.1f} hours {side} Windows'",
            "it stands while Windows sleeps: certificates and signatures are refused, times are"
            " wrong",
            "sudo hwclock -s; or in Windows wsl --shutdown, and wsl --update",
        )
    source = (machine.read(_SOURCE) or "").strip()
    xen = source == "xen" and "tsc" in (
        machine.read(f"{_SOURCE.rpartition('/')[0]}/{_CHOICE}") or ""
    )
    if xen:
        return warn(
            "clock",
            "the kernel reads it from xen, though the processor's own (tsc) is there",
            "each look at the clock takes a microsecond or more: CUDA and loaders look often",
            f"echo tsc | sudo tee {_SOURCE}; at each boot clocksource=tsc tsc=reliable on the"
            " kernel's command line",
        )
    if source in ("acpi_pm", "hpet", "jiffies"):
        return warn(
            "clock",
            f"the kernel reads it from {source}, since the processor's own is not steady (TSC)",
            "each look at the clock takes a microsecond or more: CUDA and loaders look often",
            "a virtual machine: on another host, or with an invariant TSC (cpu host-passthrough,"
            " +invtsc); else the newest BIOS, and tsc=reliable if it stays",
        )
    return ok("clock", "right")


_STARTED = 300  # seconds in which a server's first answers come


def _has_just_started(machine: Machine) -> bool:
    return (machine.uptime() or _STARTED) < _STARTED


def synchronised(machine: Machine) -> Finding:
    """The clock follows a time server, where it is for this system to see to it."""
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    said = machine.run("timedatectl", "show", "-p", "NTPSynchronized", "--value").out.strip()
    if "microsoft" in release or said not in ("yes", "no"):
        return skip("clock's server", "another system sets the clock")
    if "Enabled" in machine.run("vmware-toolbox-cmd", "timesync", "status").out:
        return ok("clock's server", "followed, by VMware's tools")
    other = None
    # From kernel 6.14 on, or so, chrony reads Hyper-V's clock; else the kernel follows it itself.
    states = [machine.run("systemctl", "is-active", name).out for name in ("chrony", "chronyd")]
    failed = any(state.strip() == "failed" for state in states)
    if log.last(machine, "hv_utils: TimeSync IC") and not failed:
        other = "Hyper-V"
    elif machine.run("systemctl", "is-active", "openntpd").out.strip() == "active":
        other = "OpenNTPD"
    elif "active" in [state.strip() for state in states]:
        other = "chrony, which has just started" if _has_just_started(machine) else None
    if other is not None:
        return ok("clock's server", f"followed, by {other}")
    if said == "yes":
        return ok("clock's server", "followed")
    # Without rtcsync chrony does not tell the kernel, whom timedatectl asks.
    if "Leap status     : Normal" in machine.run("chronyc", "-n", "tracking").out:
        return ok("clock's server", "followed, by chrony")
    return warn(
        "clock's server",
        "not followed",
        "a clock that is wrong makes certificates invalid, and machines' figures do not compare",
        "sudo timedatectl set-ntp true",
    )
