"""Heat, power, and whether the driver stays loaded: what slows GPUs that are sound."""

from __future__ import annotations

import re

from doctor import kind, laptop
from doctor.finding import Finding, ok, skip, warn
from host import limits, nvidia, pci, visible
from host.machine import Machine

_HOT = 90  # where the driver names no reason: blowers run at 87, and slow down above 90
_COOL = 70
_OPEN = 10  # uses of nvidia_drm, of which the console and an idle card have a few
_REASONS = "clocks_event_reasons.active"
_IDLE, _BRAKE, _HEAT = 0x1, 0x80, 0x60  # clocks_throttle_reasons.active
_IMPOSSIBLE = 3  # times the limit; short peaks reach twice
_BUSY, _SLOW = 80, 0.6  # per cent; of the most
_SET = 0x2  # clocks_throttle_reasons.active: by the clocks that somebody has set
_CAPPED = 0.5  # of the usual power; more is a choice that many make


def slowed(machine: Machine) -> Finding:
    """Neither heat nor power holds a GPU back."""
    gpus = visible.seen(machine)
    if not gpus:
        return skip("heat and power", "no GPU")
    return _misread(machine, gpus) or _slowed(machine, gpus)


def _slowed(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding:
    named = {g.index: g.bits(_REASONS) for g in nvidia.health(machine)}
    for gpu in gpus:
        bits = gpu.bits("clocks_throttle_reasons.active") or named.get(gpu.index, 0)
        reasons = [word for bit, word in nvidia.SLOWED.items() if bits & bit]
        if bits & _IDLE and laptop.is_mobile(machine, gpu):
            reasons = []  # a laptop's that does nothing
        heat = gpu.number("temperature.gpu")
        if reasons or (heat is not None and heat >= _HOT):
            seen = f"{gpu.label}: {heat:.0f} °C" if heat is not None else gpu.label
            if heat is not None and heat < _COOL and any("heat" in word for word in reasons):
                return warn(
                    "heat and power",
                    f"{seen}, slowed by heat all the same",
                    "firmware or driver allow it no more, as on laptops that share their cooling",
                    "nvidia-smi -q -d TEMPERATURE says the limit; on a laptop: update the BIOS, and"
                    " run thermald --adaptive; cleaning helps nothing",
                )
            cold = bits & _BRAKE and not bits & _HEAT and not kind.is_laptop(machine)
            return warn(
                "heat and power",
                f"{seen}{', slowed by ' * bool(reasons)}{', '.join(reasons)}",
                "it computes slower than it could, and the others wait for it",
                "check power supplies, their cables and the machine's management controller (BMC):"
                " they pull that brake; nvidia-smi -q -d PERFORMANCE"
                if cold
                else "it is for the host to cool it: tell the provider, or take another machine"
                if kind.is_guest(machine)
                else "check fans, dust, airflow and the power plugs, an old card's thermal paste;"
                " nvidia-smi -q -d PERFORMANCE",
            )
    for gpu in gpus:
        if laptop.is_mobile(machine, gpu):  # nvidia-smi -pl does nothing there
            continue
        limit, usual = gpu.number("power.limit"), gpu.number("power.default_limit")
        others = [g.number("power.limit") or 0 for g in gpus if g.name == gpu.name]
        less = limit is not None and usual is not None and limit < 0.95 * usual
        if limit and usual and less and (limit < _CAPPED * usual or limit < 0.9 * max(others)):
            return warn(
                "heat and power",
                f"{gpu.label} is limited to {limit:.0f} of {usual:.0f} W",
                "it computes slower than it could",
                ("on the host, by whoever owns it: " * limits.in_container(machine.root))
                + f"sudo nvidia-smi -i {gpu.row['index']} -pl {usual:.0f}   # unless that is meant",
            )
    held = _enforced(machine, gpus) or _locked(machine, gpus)
    if held is not None:
        return held
    heats = [heat for heat in (g.number("temperature.gpu") for g in gpus) if heat is not None]
    well = f"{max(heats):.0f} °C at most" if heats else "nothing slows them"
    return laptop.held_back(machine) or ok("heat and power", well)


def _enforced(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """Who runs the machine holds a GPU below what its driver is set to."""
    enforced = {gpu.index: gpu.number("enforced.power.limit") for gpu in nvidia.health(machine)}
    for gpu in (gpu for gpu in gpus if not laptop.is_mobile(machine, gpu)):
        asked, given = gpu.number("power.limit"), enforced.get(gpu.index)
        shared = re.search("G[HB][23]00", gpu.name)  # with the processor
        if asked and given and given < 0.9 * asked and not shared:
            return warn(
                "heat and power",
                f"{gpu.label} is held to {given:.0f} W, and its driver is set to {asked:.0f} W",
                "the machine's management controller (BMC) caps it: it computes slower",
                "take the cap off there (Redfish or IPMI: the power policy of GPUs and chassis);"
                " nvidia-smi -pl does not",
            )
    return None


def _locked(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU that works, and whose clock somebody holds far below what it can."""
    now = {gpu.index: gpu for gpu in nvidia.health(machine)}
    for gpu in gpus:
        other, most = now.get(gpu.index), gpu.number("clocks.max.sm")
        clock = other.number("clocks.sm") if other else None
        if other is None or clock is None or most is None:
            continue
        bits = gpu.bits("clocks_throttle_reasons.active") | other.bits(_REASONS)
        busy = (other.number("utilization.gpu") or 0) >= _BUSY
        if bits & _SET and not bits & nvidia.CAPPED and busy and clock < _SLOW * most:
            return warn(
                "heat and power",
                f"{gpu.label} works at {clock:.0f} of {most:.0f} MHz: its clock is set to that",
                "somebody has locked it (nvidia-smi -lgc, -ac): it computes slower than it could",
                f"sudo nvidia-smi -i {gpu.index} -rgc; sudo nvidia-smi -i {gpu.index} -rac",
            )
    return None


def _misread(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU that is said to draw far more than it ever can: the driver slows it for that.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1237
    """
    drawn = {gpu.index: gpu for gpu in nvidia.health(machine)}
    for gpu in gpus:
        other = drawn.get(gpu.index)
        draw = other.number("power.draw") if other else None
        bounds = [gpu.number("power.limit"), gpu.number("power.default_limit")]
        most = max((bound for bound in bounds if bound), default=None)
        if other is None or draw is None or most is None or draw < _IMPOSSIBLE * most:
            continue
        # One that has just been woken says such things as well, for once and without harm.
        if not (gpu.bits("clocks_throttle_reasons.active") or other.bits(_REASONS)) & nvidia.CAPPED:
            continue
        now, best = other.number("clocks.sm"), gpu.number("clocks.max.sm")
        clocks = f", at {now:.0f} of {best:.0f} MHz" if now and best else ""
        return warn(
            "heat and power",
            f"{gpu.label} is said to draw {draw:.0f} W, of {most:.0f} W at most{clocks}",
            "no such card draws that: the driver reads it wrong, and slows the GPU down for it",
            "sudo reboot; where it stays so, the driver of before (or a newer one): on images of"
            " rpm-ostree, rpm-ostree rollback",
        )
    return None


def _may_sleep(machine: Machine, gpus: list[nvidia.Gpu]) -> str | None:
    """Why it is well that the driver does not stay loaded; None where it is not."""
    consumer = nvidia.CONSUMER.search(gpus[0].name) is not None
    # A screen keeps the driver loaded as well, one that sleeps too; others say so without one.
    drawn = [gpu.text("display_active") == "Enabled" for gpu in gpus]
    drawn += [consumer and g.text("display_mode") == "Enabled" for g in nvidia.health(machine)]
    mobile = [name.startswith("BAT") for name in machine.names(laptop.SUPPLY)]
    mobile += [re.search("Laptop|Max-Q|Mobile", gpu.name) is not None for gpu in gpus]
    outside = [pci.is_removable(machine, card) for card in pci.cards(machine)]
    reasons = {
        "the driver stays loaded": any(drawn),
        "off: a start takes a second or two more": consumer and len(gpus) == 1,
        "off, so that a laptop's GPU can sleep": any(mobile),
        "off: it is a part of the processor": all(gpu.is_integrated for gpu in gpus),
        "off, as it should be of a GPU that may be unplugged": any(outside),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def persistence(machine: Machine) -> Finding:
    """The driver stays loaded while nothing runs."""
    _, gpus = nvidia.ask(machine)
    modes = [gpu.text("persistence_mode") for gpu in gpus]
    if not any(modes):
        return skip("persistence", "no GPU that says")
    if limits.in_container(machine.root) or kind.is_lxc(machine):
        return skip("persistence", "for the host to see to")
    # A desktop on another GPU has these open as well.
    used = re.search(r"(?m)^nvidia_drm \d+ (\d+) ", machine.read("/proc/modules") or "")
    stays = "Disabled" not in modes or (used is not None and int(used.group(1)) >= _OPEN)
    sound = "the driver stays loaded" if stays else _may_sleep(machine, gpus)
    if sound is not None:
        return ok("persistence", sound)
    daemon = machine.run("systemctl", "is-active", "nvidia-persistenced").out.strip()
    fix = "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1"
    unit = "/lib/systemd/system/nvidia-persistenced.service"
    if daemon == "active" and "--no-persistence-mode" in (machine.read(unit) or ""):
        fix = (
            "its unit says --no-persistence-mode: sudo systemctl edit nvidia-persistenced,"
            " [Service], ExecStart= and then ExecStart=/usr/bin/nvidia-persistenced --user"
            " nvidia-persistenced --persistence-mode --verbose; and restart it"
        )
    if daemon == "failed":
        fix = "journalctl -u nvidia-persistenced -n 20   # says why; until then nvidia-smi -pm 1"
        if any(gpu.is_integrated or "GH200" in gpu.name for gpu in gpus):
            # https://github.com/NVIDIA/nvidia-persistenced/issues/11
            fix = (
                "have it run as root, who alone may set up this GPU's memory: sudo systemctl edit"
                " nvidia-persistenced, ExecStart= and then ExecStart=/usr/bin/nvidia-persistenced"
                " --persistence-mode --verbose; sudo systemctl restart nvidia-persistenced"
            )
    return warn(
        "persistence",
        "off, and no screen is attached" + "; its service has failed" * (daemon == "failed"),
        "each start loads the driver anew, which takes seconds, and counters of errors are lost",
        fix,
    )
