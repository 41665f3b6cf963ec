"""Which GPUs there are, how alike they are, and who else is on them."""

from __future__ import annotations

import re

from doctor import away, kind, reasons
from doctor.finding import Finding, fail, ok, skip, warn
from host import exclusive, limits, nvidia, pci, visible
from host.machine import Machine

_WHOLE = (1, 2, 4, 8, 16)  # GPUs of a board, or of two
_EXCLUDED = re.compile(r"GPU Excluded:\s*Yes")


def models(machine: Machine) -> Finding:
    """Which GPUs there are."""
    _, gpus = nvidia.ask(machine)
    if not gpus:
        return skip("GPUs", "no GPU")
    hidden = machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    if hidden not in visible.HIDDEN and not visible.seen(machine):
        return fail(
            "GPUs",
            f"CUDA_VISIBLE_DEVICES={hidden} names none of the {len(gpus)} that are here",
            "CUDA sees no GPU: it trains on the CPU, or not at all",
            "unset CUDA_VISIBLE_DEVICES   # numbers begin with 0 in each container and job",
        )
    chosen = visible.seen(machine) if hidden else []
    apart = [gpu for gpu in chosen if not gpu.is_integrated]
    if kind.is_jetson(machine) and apart and len(apart) < len(chosen):
        return fail(
            "GPUs",
            f"CUDA_VISIBLE_DEVICES={hidden} names this board's own GPU and another one",
            "in one process CUDA takes one or the other here: it does not start",
            f"CUDA_VISIBLE_DEVICES={apart[0].uuid or 'the UUID of one (nvidia-smi -L)'}",
        )
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


def counted(machine: Machine) -> Finding:
    """The driver lists every GPU that is on the bus."""
    _, gpus = nvidia.ask(machine)
    if not gpus:
        return skip("all GPUs", "no GPU")
    there = [card for card in pci.cards(machine) if card.driver in ("nvidia", None)]
    files = len(nvidia.devices(machine))
    # A container or a job may be given some of those that its sysfs shows.
    if limits.in_job(machine.environ, machine.root) or "CUDA_VISIBLE_DEVICES" in machine.environ:
        return skip("all GPUs", "some were chosen by CUDA_VISIBLE_DEVICES or a scheduler")
    if limits.in_container(machine.root):
        there = there[:0] if files <= len(gpus) else there[:files]
    if len(there) <= len(gpus):
        return (
            _odd(machine, gpus)
            or away.taken(machine, len(gpus))
            or ok("all GPUs", f"{len(gpus)} listed")
        )
    known = {gpu.place for gpu in gpus}
    lost = [card for card in there if card.address not in known]
    missing = ", ".join(card.address for card in lost)
    seen = f"{len(there)} on the bus, and the driver lists {len(gpus)}: {missing}"
    seen += " is missing" if len(lost) == 1 else " are missing"
    why = "it stopped answering, or did not start; what starts CUDA may hang"
    fix = "sudo dmesg | grep -iE 'nvrm|xid'; then power the machine off and on"
    said = machine.run("nvidia-smi", "drain", "-p", lost[0].address, "-q").out
    if drained := re.search(r"is: *draining", said):
        why = "it is being drained: somebody has set it aside (nvidia-smi drain)"
        fix = f"sudo nvidia-smi drain -p {lost[0].address} -m 0"
    elif kind.is_guest(machine):
        fix = "restart this virtual machine; where it stays so, have its host replaced or looked at"
    folder = "/proc/driver/nvidia/gpus"
    told = (machine.read(f"{folder}/{card.address}/information") or "" for card in lost)
    shut = any(map(_EXCLUDED.search, told))
    cause = None if shut else reasons.logged(machine, lost)
    if not (shut or cause or drained) and limits.in_container(machine.root):
        return ok("all GPUs", f"{len(gpus)} listed; the files of {files} are here")
    if shut:
        why = "the driver was told to leave it alone (NVreg_ExcludedGpus)"
        fix = "take that out of /etc/modprobe.d, build the initramfs anew, and reboot"
    if cause is not None:
        seen, why, fix = f"{seen}; {cause[0]}", cause[1], cause[2]
    others = ",".join(gpu.index for gpu in gpus)
    return fail("all GPUs", seen, why, f"{fix}; until then name the others: GPUS={others},")


def equal(machine: Machine) -> Finding:
    """All GPUs are of one kind and clock."""
    gpus = visible.seen(machine)
    if len(gpus) < 2:
        return skip("equal GPUs", "fewer than two GPUs")
    names = {name for name in (gpu.text("name") for gpu in gpus) if name}
    clocks = [clock for clock in (gpu.number("clocks.max.sm") for gpu in gpus) if clock]
    used = {gpu.index for gpu in gpus}
    health = [gpu for gpu in nvidia.health(machine) if gpu.index in used]
    bios = {gpu.text("vbios_version") for gpu in health} - {None}
    # Cards for consumers come from many makers, each with a VBIOS of its own.
    if len(names) == 1 and len(bios) > 1 and not any(map(nvidia.CONSUMER.search, names)):
        return warn(
            "equal GPUs",
            f"of one kind, with different VBIOS: {', '.join(sorted(map(str, bios)))}",
            "rules for power and clocks may differ: each step waits for the slowest",
            "ask who runs the machine, or the vendor",
        )
    if len(names) < 2 and (not clocks or min(clocks) > 0.95 * max(clocks)):
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


def _held_alone(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU that lets one process compute, and has one."""
    for held in exclusive.held(machine, gpus):
        gpu, others = held.gpu, len(gpus) > 1
        if held.app is not None:
            who, fix = f"{_called(held.app)} has it", "end that one"
        else:
            used = gpu.number("memory.used") or 0
            who = f"one that is not shown has {used:.0f} MiB of it"
            fix = f"end it, such as a dead job's container: sudo fuser -v /dev/nvidia{gpu.index}"
        return fail(
            "busy GPUs",
            f"{gpu.label} is for one process alone ({held.mode}), and {who}",
            "CUDA refuses it to all others (busy or unavailable, 46)",
            f"{'GPUS=free; or ' * others}{fix}, or sudo nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    return None


def _odd(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """Of the GPUs of a board with switches some are gone, from the bus as well."""
    if len(gpus) in _WHOLE or kind.is_guest(machine) or limits.in_container(machine.root):
        return None  # some may be given away
    if "In Progress" not in [gpu.text("fabric.state") for gpu in nvidia.health(machine)]:
        return None
    return fail(
        "all GPUs",
        f"{len(gpus)}, and such a board has 4 or 8: the rest is not on the bus",
        "the switches wait for all of them, and CUDA starts on none (802)",
        "take all power from the machine, for a minute, and start it again; if it is not back, have"
        " the GPU's module serviced: nvidia-bug-report.sh",
    )


def _miscounted(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """A GPU of which more memory is used than there is."""
    for gpu in gpus:
        memory, total = gpu.number("memory.used"), gpu.number("memory.total")
        if memory is None or not total or memory <= total:
            continue
        shared = "libvgpu.so" in (machine.read("/etc/ld.so.preload") or "")
        return fail(
            "busy GPUs",
            f"{gpu.label}: {memory:.0f} of {total:.0f} MiB are used, says nvidia-smi",
            "what shares this GPU among pods (HAMi's libvgpu.so) has miscounted, and refuses memory"
            if shared
            else "what stands between nvidia-smi and the driver has miscounted",
            "delete the pod and start it anew; HAMi 2.6.1 or newer counts right"
            if shared
            else "look what LD_PRELOAD and /etc/ld.so.preload name",
        )
    return None


_MOST = 6
"""Programs that are named: one training may be dozens."""


def _called(app: nvidia.App) -> str:
    """Its program and number; a process that is gone, or another container's, has no name."""
    name = "" if app.name.startswith("[") else app.name.rsplit("/", 1)[-1]
    return f"{name} (PID {app.pid})" if name else f"PID {app.pid}"


_STOP = "stop them: sudo fuser -v /dev/nvidia*"
_OF_OTHERS = (
    "on the host, sudo fuser -v /dev/nvidia* says who. In Kubernetes other pods may share this GPU"
    " and its memory (time slicing): ask for one of your own"
)


def neighbours(machine: Machine) -> Finding:
    """Nobody else computes on the GPUs."""
    gpus = visible.seen(machine)
    if not gpus:
        return skip("busy GPUs", "no GPU")
    alone = _held_alone(machine, gpus) or _miscounted(machine, gpus)
    if alone is not None:
        return alone
    served = exclusive.served(machine, gpus)
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu not in served}
    used = [
        f"{by_uuid[app.uuid].label}: {_called(app)}"
        for app in nvidia.apps(machine)
        # Of which nothing is known, as under WSL, nothing is said.
        if app.uuid in by_uuid and (app.name, app.memory) != ("[Not Found]", "[N/A]")
    ]
    for gpu in gpus:  # another container's or user's may not be listed
        failed = any("requires reset" in value for value in gpu.row.values())
        # What is used is the machine's; nobody's any more; or meant so.
        if gpu.is_integrated or failed or gpu in served:
            continue
        memory, total = gpu.number("memory.used"), gpu.number("memory.total")
        listed = any(row.startswith(f"{gpu.label}:") for row in used)
        # A desktop's programs are not listed, and take up to a half of a small card.
        most = 0.5 if gpu.text("display_active") == "Enabled" else 0.1
        if memory and total and memory > most * total and memory > 2048 and not listed:
            used.append(f"{gpu.label}: {memory / 1024:.0f} GiB by programs that are not shown")
    if not used:
        shared = ", ".join(gpu.label for gpu in served)
        return ok("busy GPUs", f"an MPS server shares {shared}" if served else "none")
    hidden = all("not shown" in row for row in used)
    coherent = [gpu for gpu in gpus if re.search(r"\bG[BH][12]00\b", gpu.name)]
    if coherent and hidden:
        return warn(
            "busy GPUs",
            "; ".join(used[:_MOST]),
            "on such a machine the kernel may keep what it read of files in a GPU's memory",
            "echo 3 | sudo tee /proc/sys/vm/drop_caches; what stays is a program's: sudo fuser -v"
            " /dev/nvidia*; drivers from 570 on give it back by themselves",
        )
    return warn(
        "busy GPUs",
        "; ".join(used[:_MOST]) + (f"; and {len(used) - _MOST} more" if used[_MOST:] else ""),
        "they share memory and time with this training",
        ("train on the others: GPUS=free; or " if len(gpus) > 1 else "")
        + (_OF_OTHERS if hidden and limits.in_container(machine.root) else _STOP),
    )
