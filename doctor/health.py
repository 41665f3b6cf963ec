"""How the GPUs are: faults, heat, power, and what the driver wants done about them."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, nvidia, pci, visible
from host.machine import Machine

_HOT = 87
_COOL = 70
_CAPPED = 0.75  # of the usual power; less is a choice that many make
_SUPPLY = "/sys/class/power_supply"
# Without these nothing can be said of a GPU; others some drivers do not tell of sound ones.
_VITAL = ("temperature.gpu", "memory.total", "memory.used", "ecc.errors.uncorrected.volatile.total")
_RESET = "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot"
# Whether it trains; a field of nvidia-smi and its value; what is seen; what it means; what helps.
_HEALTH = (
    (
        "fail",
        "remapped_rows.failure",
        "yes|[1-9][0-9]*",
        "a row of its memory could not be replaced",
        "its memory is worn out: weights may be wrong, programs end",
        "have it replaced; until then hide it with CUDA_VISIBLE_DEVICES",
    ),
    (
        "fail",
        "gpu_recovery_action",
        "(?!none|0$|drain p2p).+",
        "the driver asks for: {value}",
        "until then programs on it fail or hang",
        _RESET,
    ),
    (
        "fail",
        "compute_mode",
        "prohibited",
        "its compute mode is Prohibited",
        "no program may compute on it",
        "sudo nvidia-smi -i {gpu} -c DEFAULT",
    ),
    (
        "fail",
        "fabric.state",
        "in progress|not started",
        "the switch between the GPUs (NVSwitch) is not ready: {value}",
        "CUDA does not start on any of them (error 802)",
        (
            "sudo systemctl enable --now nvidia-fabricmanager; it must be of the driver's version:"
            " journalctl -u nvidia-fabricmanager"
        ),
    ),
    (
        "warn",
        "remapped_rows.pending",
        "yes|[1-9][0-9]*",
        "a row of its memory waits to be replaced",
        "errors come back until the next reset",
        _RESET,
    ),
    (
        "warn",
        "retired_pages.pending",
        "yes",
        "pages of its memory wait to be retired",
        "errors come back until the next reset",
        _RESET,
    ),
)


def state(machine: Machine) -> Finding:
    """No GPU answers a question with an error."""
    gpus = visible.seen(machine)
    if not gpus:
        return skip("GPU state", "no GPU")
    for gpu in gpus:
        for field, value in gpu.row.items():
            if re.search(r"requires reset|gpu is lost|^\[?ERR!\]?$", value, re.IGNORECASE):
                return _unwell(gpu, field, value)
        sick = [field for field in _VITAL if "unknown error" in gpu.row.get(field, "").lower()]
        if sick:
            return _unwell(gpu, sick[0], gpu.row[sick[0]])
    return ok("GPU state", "all answer")


def _unwell(gpu: nvidia.Gpu, field: str, value: str) -> Finding:
    return fail(
        "GPU state",
        f"{gpu.label} says of its {field}: {value}",
        "it hangs or has failed: what uses it hangs, or computes wrongly",
        f"end what uses it, then sudo nvidia-smi --gpu-reset -i {gpu.index}; else sudo reboot;"
        " until then hide it with CUDA_VISIBLE_DEVICES",
    )


def memory_errors(machine: Machine) -> Finding:
    """No uncorrectable error in GPU memory since the driver was loaded."""
    gpus = visible.seen(machine)
    known = [(g, g.number("ecc.errors.uncorrected.volatile.total")) for g in gpus]
    counted = [(g, count) for g, count in known if count is not None]
    if not counted:
        return skip("GPU memory errors", "no GPU that says")
    bad = [(g, int(count)) for g, count in counted if count]
    if not bad:
        silent = [g.label for g, count in known if count is None]
        note = f"; not known of {', '.join(silent)}" if silent else ""
        return ok("GPU memory errors", f"none uncorrected{note}")
    first = bad[0][0]
    return fail(
        "GPU memory errors",
        ", ".join(f"{g.label}: {count} uncorrected" for g, count in bad),
        "weights may be wrong without a word; it gets worse with time",
        f"sudo nvidia-smi --gpu-reset -i {first.row['index']}; if they come back, have it replaced;"
        " until then hide it with CUDA_VISIBLE_DEVICES",
    )


def health(machine: Machine) -> Finding:
    """What the driver wants done about a GPU: a reset, a replacement."""
    rows = {gpu.index: gpu for gpu in nvidia.health(machine)}
    gpus = [rows[gpu.index] for gpu in visible.seen(machine) if gpu.index in rows]
    if not gpus:
        return skip("GPU health", "no GPU that says")
    for status, field, sign, seen, why, fix in _HEALTH:
        for gpu in gpus:
            value = gpu.text(field) or ""
            if value and re.fullmatch(sign, value, re.IGNORECASE):
                said = f"{gpu.label}: {seen.format(value=value)}"
                unwell = fail if status == "fail" else warn
                return unwell("GPU health", said, why, fix.format(gpu=gpu.index))
    return _switches(machine) or _sealed(machine) or ok("GPU health", "nothing to do")


def _sealed(machine: Machine) -> Finding | None:
    """GPUs for confidential computing are not made ready yet."""
    flags = machine.read("/proc/cpuinfo") or ""
    if not re.search(r"^flags\s*:.*\b(sev_snp|tdx_guest)\b", flags, re.MULTILINE):
        return None
    if "not-ready" not in machine.run("nvidia-smi", "conf-compute", "-grs").out:
        return None
    return fail(
        "GPU health",
        "confidential computing is on, and the GPUs are not set ready",
        "CUDA does not start on any of them",
        "attest them, then sudo nvidia-smi conf-compute -srs 1",
    )


def _switches(machine: Machine) -> Finding | None:
    """What sets up the switches between GPUs does not run, on a machine that has some."""
    if limits.in_container(machine.root):
        return None
    if not any(re.fullmatch(r"nvidia-nvswitch\d+", name) for name in machine.names("/dev")):
        return None
    said = machine.run("systemctl", "is-active", "nvidia-fabricmanager").out.strip()
    if said not in ("inactive", "failed"):  # what cannot be asked is not said
        return None
    return fail(
        "GPU health",
        f"there are NVSwitches, and nvidia-fabricmanager is {said}",
        "CUDA does not start on any of the GPUs (error 802)",
        "install nvidia-fabricmanager of the driver's own version, and sudo systemctl enable --now"
        " nvidia-fabricmanager",
    )


def slowed(machine: Machine) -> Finding:
    """Neither heat nor power holds a GPU back."""
    gpus = visible.seen(machine)
    if not gpus:
        return skip("heat and power", "no GPU")
    named = {g.index: g.bits("clocks_event_reasons.active") for g in nvidia.health(machine)}
    for gpu in gpus:
        bits = gpu.bits("clocks_throttle_reasons.active") or named.get(gpu.index, 0)
        reasons = [word for bit, word in nvidia.SLOWED.items() if bits & bit]
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
            return warn(
                "heat and power",
                f"{seen}{', slowed by ' * bool(reasons)}{', '.join(reasons)}",
                "it computes slower than it could, and the others wait for it",
                "check fans, dust, airflow and the power plugs; nvidia-smi -q -d PERFORMANCE",
            )
    for gpu in gpus:
        limit, usual = gpu.number("power.limit"), gpu.number("power.default_limit")
        others = [g.number("power.limit") or 0 for g in gpus if g.name == gpu.name]
        less = limit is not None and usual is not None and limit < 0.95 * usual
        if limit and usual and less and (limit < _CAPPED * usual or limit < 0.9 * max(others)):
            return warn(
                "heat and power",
                f"{gpu.label} is limited to {limit:.0f} of {usual:.0f} W",
                "it computes slower than it could",
                f"sudo nvidia-smi -i {gpu.row['index']} -pl {usual:.0f}   # unless that is meant",
            )
    mains = [n for n in machine.names(_SUPPLY) if machine.read(f"{_SUPPLY}/{n}/type") == "Mains"]
    if mains and all(machine.read(f"{_SUPPLY}/{name}/online") == "0" for name in mains):
        return warn(
            "heat and power",
            "this laptop runs on its battery",
            "firmware and driver hold the GPU at a part of its clocks",
            "plug in the charger",
        )
    heats = [heat for heat in (g.number("temperature.gpu") for g in gpus) if heat is not None]
    return ok("heat and power", f"{max(heats):.0f} °C at most" if heats else "nothing slows them")


def _may_sleep(machine: Machine, gpus: list[nvidia.Gpu]) -> str | None:
    """Why it is well that the driver does not stay loaded; None where it is not."""
    consumer = nvidia.CONSUMER.search(gpus[0].name) is not None
    # A screen keeps the driver loaded as well, one that sleeps too; others say so without one.
    drawn = [gpu.text("display_active") == "Enabled" for gpu in gpus]
    drawn += [consumer and g.text("display_mode") == "Enabled" for g in nvidia.health(machine)]
    laptop = [name.startswith("BAT") for name in machine.names(_SUPPLY)]
    laptop += [re.search("Laptop|Max-Q|Mobile", gpu.name) is not None for gpu in gpus]
    outside = [pci.is_removable(machine, card) for card in pci.cards(machine)]
    reasons = {
        "the driver stays loaded": any(drawn),
        "off: a start takes a second or two more": consumer and len(gpus) == 1,
        "off, so that a laptop's GPU can sleep": any(laptop),
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
    if limits.in_container(machine.root):
        return skip("persistence", "for the host to see to")
    sound = "the driver stays loaded" if "Disabled" not in modes else _may_sleep(machine, gpus)
    if sound is not None:
        return ok("persistence", sound)
    return warn(
        "persistence",
        "off, and no screen is attached",
        "each start loads the driver anew, which takes seconds, and counters of errors are lost",
        "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1",
    )
