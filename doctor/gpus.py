"""The GPUs as they are now: model, faults, heat, power, neighbours."""

from __future__ import annotations

from doctor.finding import Finding, fail, ok, skip, warn
from host import nvidia
from host.machine import Machine

_HOT = 87


def models(machine: Machine) -> Finding:
    """Which GPUs there are."""
    _, gpus = nvidia.ask(machine)
    if not gpus:
        return skip("GPUs", "no GPU")
    kinds: dict[str, list[nvidia.Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault(gpu.name, []).append(gpu)
    return ok("GPUs", "; ".join(f"{len(same)} × {_describe(same[0])}" for same in kinds.values()))


def _describe(gpu: nvidia.Gpu) -> str:
    memory, limit = gpu.number("memory.total"), gpu.number("power.limit")
    parts = [gpu.name]
    parts += [f"{memory / 1024:.1f} GiB"] if memory else []
    parts += [f"compute capability {gpu.text('compute_cap')}"] if gpu.text("compute_cap") else []
    parts += [f"{limit:.0f} W"] if limit else []
    return ", ".join(parts)


def equal(machine: Machine) -> Finding:
    """All GPUs are of one kind and clock."""
    gpus = nvidia.seen(machine)
    if len(gpus) < 2:
        return skip("equal GPUs", "fewer than two GPUs")
    names = {gpu.name for gpu in gpus}
    clocks = [clock for clock in (gpu.number("clocks.max.sm") for gpu in gpus) if clock]
    if len(names) == 1 and (not clocks or min(clocks) > 0.95 * max(clocks)):
        return ok("equal GPUs", f"{len(gpus)} of one kind")
    kinds: dict[tuple[str, float], list[nvidia.Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.name, gpu.number("clocks.max.sm") or 0), []).append(gpu)
    # Not the small one that drives the screen.
    best = max(kinds.values(), key=lambda same: (len(same), same[0].number("memory.total") or 0))
    seen = " and ".join(sorted(names)) if len(names) > 1 else "different maximum clocks"
    return warn(
        "equal GPUs",
        seen,
        "each step waits for the slowest, and the smallest memory decides",
        f"make train GPUS={','.join(gpu.row['index'] for gpu in best)},",
    )


def memory_errors(machine: Machine) -> Finding:
    """No uncorrectable error in GPU memory since the driver was loaded."""
    gpus = nvidia.seen(machine)
    known = [(g, g.number("ecc.errors.uncorrected.volatile.total")) for g in gpus]
    counted = [(g, count) for g, count in known if count is not None]
    if not counted:
        return skip("GPU memory errors", "no GPU that says")
    bad = [(g, int(count)) for g, count in counted if count]
    if not bad:
        return ok("GPU memory errors", "none uncorrected")
    first = bad[0][0]
    return fail(
        "GPU memory errors",
        ", ".join(f"{g.label}: {count} uncorrected" for g, count in bad),
        "weights may be wrong without a word; it gets worse with time",
        f"sudo nvidia-smi --gpu-reset -i {first.row['index']}; if they come back, have it replaced;"
        " until then hide it with CUDA_VISIBLE_DEVICES",
    )


def mig(machine: Machine) -> Finding:
    """No GPU is cut into instances."""
    gpus = nvidia.seen(machine)
    cut = [g for g in gpus if g.text("mig.mode.current") == "Enabled"]
    if not any(g.text("mig.mode.current") for g in gpus):
        return skip("MIG", "no GPU that says")
    if not cut:
        return ok("MIG", "off")
    return warn(
        "MIG",
        f"on: {', '.join(g.label for g in cut)}",
        "a process gets one instance, a part of the GPU, and instances cannot train together",
        "train on one: CUDA_VISIBLE_DEVICES=MIG-… (nvidia-smi -L); or, with nothing running,"
        f" sudo nvidia-smi -i {cut[0].row['index']} -mig 0",
    )


def slowed(machine: Machine) -> Finding:
    """Neither heat nor power holds a GPU back."""
    gpus = nvidia.seen(machine)
    if not gpus:
        return skip("heat and power", "no GPU")
    for gpu in gpus:
        bits = int(gpu.text("clocks_throttle_reasons.active") or "0", 16)
        reasons = [word for bit, word in nvidia.SLOWED.items() if bits & bit]
        heat = gpu.number("temperature.gpu")
        if reasons or (heat is not None and heat >= _HOT):
            seen = f"{gpu.label}: {heat:.0f} °C" if heat is not None else gpu.label
            return warn(
                "heat and power",
                f"{seen}{', slowed by ' * bool(reasons)}{', '.join(reasons)}",
                "it computes slower than it could, and the others wait for it",
                "check fans, dust, airflow and the power plugs; nvidia-smi -q -d PERFORMANCE",
            )
    for gpu in gpus:
        limit, usual = gpu.number("power.limit"), gpu.number("power.default_limit")
        if limit and usual and limit < 0.9 * usual:
            return warn(
                "heat and power",
                f"{gpu.label} is limited to {limit:.0f} of {usual:.0f} W",
                "it computes slower than it could",
                f"sudo nvidia-smi -i {gpu.row['index']} -pl {usual:.0f}   # unless that is meant",
            )
    heats = [heat for heat in (g.number("temperature.gpu") for g in gpus) if heat is not None]
    return ok("heat and power", f"{max(heats):.0f} °C at most" if heats else "nothing slows them")


def neighbours(machine: Machine) -> Finding:
    """Nobody else computes on the GPUs."""
    gpus = nvidia.seen(machine)
    if not gpus:
        return skip("busy GPUs", "no GPU")
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    used = [
        f"{by_uuid[app.uuid].label}: {app.name.rsplit('/', 1)[-1]} (PID {app.pid})"
        for app in nvidia.apps(machine)
        if app.uuid in by_uuid
    ]
    for gpu in gpus:  # another container's or user's may not be listed
        memory, total = gpu.number("memory.used"), gpu.number("memory.total")
        listed = any(row.startswith(f"{gpu.label}:") for row in used)
        if memory and total and memory > 0.1 * total and memory > 2048 and not listed:
            used.append(f"{gpu.label}: {memory / 1024:.0f} GiB by programs that are not shown")
    if not used:
        return ok("busy GPUs", "none")
    return warn(
        "busy GPUs",
        "; ".join(used),
        "they share memory and time with this training",
        "train on the others: GPUS=free; or stop them",
    )


def persistence(machine: Machine) -> Finding:
    """The driver stays loaded while nothing runs."""
    _, gpus = nvidia.ask(machine)
    modes = [gpu.text("persistence_mode") for gpu in gpus]
    if not any(modes):
        return skip("persistence", "no GPU that says")
    # A screen keeps the driver loaded as well.
    if "Disabled" not in modes or any(g.text("display_active") == "Enabled" for g in gpus):
        return ok("persistence", "the driver stays loaded")
    return warn(
        "persistence",
        "off, and no screen is attached",
        "each start loads the driver anew, which takes seconds, and counters of errors are lost",
        "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1",
    )
