"""How the GPUs are: faults, and what the driver wants done about them."""

from __future__ import annotations

import re

from doctor import details, fabric, kind, sealed, shared
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, nvidia, visible
from host.machine import Machine
from host.text import whole

# Without these nothing can be said of a GPU; others some drivers do not tell of sound ones.
_VITAL = ("temperature.gpu", "memory.total", "memory.used", "ecc.errors.uncorrected.volatile.total")
_WORN = 8  # rows, as many as one bank has in place of others
_RESET = "with nothing running: sudo nvidia-smi --gpu-reset -i {gpu}; or reboot"
_NOW = "sudo nvidia-smi --gpu-reset -i {gpu}"
_RESET_OUTSIDE = (
    "on the machine itself, not in this container: sudo nvidia-smi --gpu-reset -i {gpu}, or reboot;"
    " where you rent it, stop this container and take another machine"
)
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
        ".*imex.*",
        "the driver asks for: {value}",
        "GPUs of several machines share memory by IMEX, and that has failed",
        "sudo systemctl restart nvidia-imex, on all machines of its domain at once",
    ),
    (
        "fail",
        "gpu_recovery_action",
        "(node )?reboot",
        "the driver asks for: {value}",
        "until then programs on it fail or hang, and a reset does not help",
        "sudo reboot",
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
            "sudo systemctl enable --now nvidia-fabricmanager; it must be of the driver's version"
            " (install that one where there is none): journalctl -u nvidia-fabricmanager"
        ),
    ),
    (
        "fail",
        "fabric.status",
        "(?!success$|0$|unknown error|not supported).+",
        "the NVLink fabric has no place for it: {value}",
        "GPUs do not reach each other over NVLink, and CUDA may not start",
        (
            "nvidia-smi -q | grep -A4 Fabric; sudo systemctl restart nvidia-fabricmanager (or"
            " nvidia-imex, of a rack); else have whoever runs the machine mend the fabric"
        ),
    ),
    (
        "warn",
        "ecc.errors.corrected.volatile.total",
        "[1-9][0-9]{6,}",
        "{value} errors in its memory were corrected since the driver was loaded",
        "its memory is going bad: the next ones may not be corrected",
        "have it replaced; until then hide it with CUDA_VISIBLE_DEVICES",
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
                return _unwell(machine, gpu, field, value)
        sick = [field for field in _VITAL if "unknown error" in gpu.row.get(field, "").lower()]
        if sick:
            return _unwell(machine, gpu, sick[0], gpu.row[sick[0]])
    return ok("GPU state", "all answer")


def _unwell(machine: Machine, gpu: nvidia.Gpu, field: str, value: str) -> Finding:
    reset = _reset(machine, f"end what uses it, then {_NOW}; else sudo reboot")
    return fail(
        "GPU state",
        f"{gpu.label} says of its {field}: {value}",
        "it hangs or has failed: what uses it hangs, or computes wrongly",
        f"{reset.format(gpu=gpu.index)}; until then hide it with CUDA_VISIBLE_DEVICES",
    )


def _reset(machine: Machine, usual: str) -> str:
    """How a GPU of this machine is reset: from a container nobody can."""
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    rented = kind.is_rented(machine) and not inside
    told = f"{usual}; where it comes back, stop and start the machine: it moves to another host"
    return _RESET_OUTSIDE if inside else told if rented else usual


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
        f"{_reset(machine, _NOW).format(gpu=first.index)}; if they come back, have it replaced;"
        " until then hide it with CUDA_VISIBLE_DEVICES",
    )


def _spared(machine: Machine, gpu: nvidia.Gpu) -> bool:
    """Whether a GPU that is kept from computing drives the screen, or is of another kind, and
    others train.
    """
    listed = nvidia.ask(machine)[1]
    asked = whole(machine.environ.get("GPUS")) or 0
    own = next((each for each in listed if each.index == gpu.index), None)
    others = [each for each in listed if each.index != gpu.index]
    if own is None or not others or asked > len(others):
        return False
    shown = own.text("display_active") == "Enabled"
    return shown or all(each.name != own.name for each in others)


def health(machine: Machine) -> Finding:
    """What the driver wants done about a GPU: a reset, a replacement."""
    rows = {gpu.index: gpu for gpu in nvidia.health(machine)}
    gpus = [rows[gpu.index] for gpu in visible.seen(machine) if gpu.index in rows]
    if not gpus:
        return skip("GPU health", "no GPU that says")
    places = {gpu.index: gpu.place for gpu in visible.seen(machine)}
    for status, field, sign, seen, why, fix in _HEALTH:
        for gpu in gpus:
            value = gpu.text(field) or ""
            meant = field == "compute_mode" and _spared(machine, gpu)
            if value and not meant and re.fullmatch(sign, value, re.IGNORECASE):
                said = f"{gpu.label}: {seen.format(value=value)}"
                unwell = fail if status == "fail" else warn
                helps = (_reset(machine, fix) if fix == _RESET else fix).format(gpu=gpu.index)
                worn = details.replaced(machine, places.get(gpu.index, "")) if fix == _RESET else 0
                if worn >= _WORN:
                    helps += f"; and have it replaced: {worn} rows of its memory were already"
                means = why
                cause = fabric.cause(machine) if field == "fabric.state" else None
                if field == "fabric.status" and "Permission" in value and kind.is_guest(machine):
                    cause = fabric.OF_HOST
                if cause is not None:
                    means, helps = cause
                if field == "fabric.state" and limits.in_container(machine.root):
                    helps = (
                        f"on the host: {helps}. If it is not yours: tell its owner, take another"
                    )
                return unwell("GPU health", said, means, helps)
    for look in (
        fabric.switches,
        _sealed,
        shared.apart,
        details.worst,
        fabric.rack,
        shared.balanced,
    ):
        found = look(machine)
        if found is not None:
            return found
    alone = [g.label for g in gpus if "exclusive" in (g.text("compute_mode") or "").lower()]
    note = f"; for one process at a time, any other is refused as busy: {', '.join(alone)}"
    return ok("GPU health", f"nothing to do{note if alone else ''}")


def _sealed(machine: Machine) -> Finding | None:
    """GPUs for confidential computing are not made ready yet."""
    if not sealed.waits(machine):
        return None
    seen, fix = sealed.UNREADY
    return fail("GPU health", seen, "CUDA does not start on any of them", fix)
