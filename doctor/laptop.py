"""What holds a laptop's GPU back: its battery, its charger, and what shares its power out."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, warn
from host import nvidia
from host.machine import Machine
from host.text import number

SUPPLY = "/sys/class/power_supply"
_PROFILE = "/sys/firmware/acpi/platform_profile"
_QUIET = ("low-power", "quiet", "cool")
_BUSY = 80  # per cent
_REASONS = "clocks_event_reasons.active"
_POLICIES = ("/etc/dbus-1/system.d", "/usr/share/dbus-1/system.d")
_POWERD = "nvidia-powerd.service"
_AGREED = ("voltage_now", "current_max")  # millionths of a volt and an ampere
_LEAST = 100  # watts; laptops with such GPUs come with 140 and more
_FULL = 100  # watts of a laptop's GPU that needs no boost


def held_back(machine: Machine) -> Finding | None:
    """A laptop that gives its GPU less than it could."""
    if _unboosted(machine):
        return warn(
            "heat and power",
            "this laptop's GPU stays at its least power: nvidia-powerd does not run",
            "under load it would be given more by that service (Dynamic Boost)",
            _unit(machine) + "sudo systemctl enable --now nvidia-powerd",
        )
    mains = [n for n in machine.names(SUPPLY) if machine.read(f"{SUPPLY}/{n}/type") == "Mains"]
    # One that is charged by USB says of the plug beside it that nothing is in it.
    own = [n for n in machine.names(SUPPLY) if machine.read(f"{SUPPLY}/{n}/scope") != "Device"]
    states = {machine.read(f"{SUPPLY}/{name}/status") or "" for name in own}
    charged = bool(states & {"Charging", "Full", "Not charging"}) and "Discharging" not in states
    unplugged = mains and all(machine.read(f"{SUPPLY}/{name}/online") == "0" for name in mains)
    if unplugged and not charged:
        return warn(
            "heat and power",
            "this laptop runs on its battery",
            "firmware and driver hold the GPU at a part of its clocks",
            "plug in the charger",
        )
    profile = machine.read(_PROFILE) or ""
    if profile in _QUIET and "performance" in (machine.read(f"{_PROFILE}_choices") or ""):
        return warn(
            "heat and power",
            f"this machine's firmware is set to {profile} (platform_profile)",
            "it gives processor and GPU less power",
            "powerprofilesctl set performance, or echo performance | sudo tee"
            f" {_PROFILE}; supergfxctl's and the maker's own tools set it as well",
        )
    return _held_low(machine)


def _held_low(machine: Machine) -> Finding | None:
    """Its GPU is allowed less power than it is made for."""
    low = _kept_low(machine)
    kept = low or _halved(machine)
    watts = _charger(machine)
    if kept is not None and watts is not None and watts < _LEAST:
        return warn(
            "heat and power",
            f"{kept}; its charger gives {watts:.0f} W, by USB",
            "the firmware holds the GPU to what the charger can give",
            "plug in the charger that came with the laptop",
        )
    if kept is not None and low is None and _starved(machine):
        return warn(
            "heat and power",
            kept,
            "the laptop's own controller holds it there, as after a charger that it did not know",
            "shut it down, pull charger and (if it can be taken out) battery for a minute; the"
            " maker's own charger; the newest BIOS",
        )
    if low is not None:
        return warn(
            "heat and power",
            low,
            "nvidia-powerd, or the firmware that it asks, gives this laptop's GPU no more power",
            "sudo systemctl disable --now nvidia-powerd, and look whether it goes to P0; then the"
            " newest BIOS",
        )
    return None


def is_mobile(machine: Machine, gpu: nvidia.Gpu) -> bool:
    """Whether it is a laptop's, whose power the firmware decides."""
    named = re.search(r"Laptop|Max-Q(?! Workstation)|Mobile", gpu.name)
    return kind.is_laptop(machine) or named is not None


def _kept_low(machine: Machine) -> str | None:
    """A laptop's GPU that is busy and cool, and not let out of a state of little power.

    https://github.com/ublue-os/bazzite/issues/4384,
    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1344
    """
    listed = {gpu.index: gpu for gpu in nvidia.ask(machine)[1] if is_mobile(machine, gpu)}
    for gpu in nvidia.health(machine):
        if gpu.index not in listed:
            continue
        load, state = gpu.number("utilization.gpu") or 0, gpu.text("pstate") or ""
        own = listed[gpu.index]
        limit, usual = own.number("power.limit"), own.number("power.default_limit")
        capped = gpu.bits(_REASONS) & nvidia.CAPPED or (limit and usual and limit < usual / 2)
        # P2 is what the driver computes in by choice.
        if load < _BUSY or not capped or not re.fullmatch("P([3-9]|1[0-5])", state):
            continue
        if machine.run("systemctl", "is-active", "nvidia-powerd").out.strip() == "active":
            drawn = gpu.number("power.draw")
            watts = f", at {drawn:.0f} W" if drawn is not None else ""
            return f"{gpu.label} stays in {state} under load{watts}, and nvidia-powerd runs"
    return None


def _halved(machine: Machine) -> str | None:
    """A GPU that is allowed a part of its usual power, whatever it does."""
    for gpu in nvidia.ask(machine)[1]:
        limit, usual = gpu.number("power.limit"), gpu.number("power.default_limit")
        if is_mobile(machine, gpu) and limit and usual and limit <= 0.6 * usual:
            return f"{gpu.label} is allowed {limit:.0f} of its usual {usual:.0f} W"
    return None


def _starved(machine: Machine) -> bool:
    """Whether a busy GPU is allowed less than a third of what it is made for."""
    busy = {g.index for g in nvidia.health(machine) if (g.number("utilization.gpu") or 0) >= _BUSY}
    return any(
        gpu.index in busy
        and (gpu.number("power.limit") or 0) < (gpu.number("power.default_limit") or 0) / 3
        for gpu in nvidia.ask(machine)[1]
    )


def _charger(machine: Machine) -> float | None:
    """Watts that what charges a laptop by USB has agreed to give; None where nothing does."""
    for name in machine.names(SUPPLY):
        place = f"{SUPPLY}/{name}"
        if machine.read(f"{place}/type") == "USB" and machine.read(f"{place}/online") == "1":
            volt, ampere = (number(machine.read(f"{place}/{w}")) for w in _AGREED)
            if volt and ampere:
                return volt * ampere / 1e12
    return None


def _unboosted(machine: Machine) -> bool:
    """Whether a laptop could shift power to its GPU, and what does that is off."""
    places = "/proc/driver/nvidia/gpus"
    said = [machine.read(f"{places}/{name}/power") or "" for name in machine.names(places)]
    told = [x for text in said for x in re.findall(r"Notebook Dynamic Boost:\s*(\w+)", text)]
    able = "Supported" in told
    if told and not able:
        return False
    limits = [gpu.number("enforced.power.limit") or 0 for gpu in nvidia.health(machine)]
    able = able and any(limit < _FULL for limit in limits)  # else it has as much already
    if not able and not _at_its_least(machine):
        return False
    return machine.run("systemctl", "is-active", "nvidia-powerd").out.strip() == "inactive"


def _at_its_least(machine: Machine) -> bool:
    """Whether a laptop's GPU of a kind that can be given more is busy, and draws all it may."""
    names = {gpu.index: gpu.name for gpu in nvidia.ask(machine)[1]}
    for gpu in nvidia.health(machine):
        limit, drawn = gpu.number("enforced.power.limit"), gpu.number("power.draw")
        able = re.search(r"RTX [345]0\d0.* Laptop GPU", names.get(gpu.index, ""))
        busy = (gpu.number("utilization.gpu") or 0) >= _BUSY
        if able and busy and limit and drawn and drawn >= 0.95 * limit:
            return True
    return False


def _unit(machine: Machine) -> str:
    """How its unit is installed, where Ubuntu's packages have it among the documents alone."""
    places = ("/lib/systemd/system", "/usr/lib/systemd/system", "/etc/systemd/system")
    if any(machine.exists(f"{place}/{_POWERD}") for place in places):
        return ""
    docs = "/usr/share/doc"
    names = [name for name in machine.names(docs) if name.startswith("nvidia-kernel-common")]
    found = [f"{docs}/{n}/{_POWERD}" for n in names if machine.exists(f"{docs}/{n}/{_POWERD}")]
    if found:
        first = f"sudo cp {found[0]} /etc/systemd/system/ && "
        policies = [n for place in _POLICIES for n in machine.names(place)]
        if not policies or any("nvidia" in name for name in policies):
            return first
        # https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/dynamicboost.html
        return (
            f"put its D-Bus policy (nvidia-dbus.conf, of the driver) into {_POLICIES[0]}; {first}"
        )
    lacking = "could not be found" in machine.run("systemctl", "status", "nvidia-powerd").said
    if not lacking:
        return ""
    if not any(machine.exists(f"{place}/nvidia-powerd") for place in ("/usr/bin", "/usr/sbin")):
        return "install nvidia-powerd, of the driver's own version, and "
    return "after each boot sudo nvidia-powerd &, since its package has no unit; of one that has: "
