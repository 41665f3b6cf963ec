"""Which GPUs there are, how alike they are, and who else is on them."""

from __future__ import annotations

import re

from doctor import away, branches, kind, log, reasons
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, nvidia, pci, visible
from host.machine import Machine

_WHOLE = (1, 2, 4, 8, 16)  # GPUs of a board, or of two
# Clouds' sizes, and the GPUs that each has.
_OF_SIZES = (
    (r"p5(en|e)?\.48xlarge|p4de?\.24xlarge|p3(dn)?\.(16|24)xlarge|p6\S*\.48xlarge", 8),
    (r"g[56]e?\.48xlarge|BM\.GPU\S*\.8$", 8),
)
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
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    if inside:
        there = there[:0] if files <= len(gpus) else there[:files]
    if len(there) <= len(gpus):
        return (
            _odd(machine, gpus)
            or away.taken(machine, len(gpus))
            or ok("all GPUs", f"{len(gpus)} listed")
        )
    known = {gpu.place for gpu in gpus}
    lost = [card for card in there if card.address not in known]
    legacy = [] if machine.environ.get("GPUS") else _legacy(machine, lost)
    lost = [card for card in lost if card not in legacy] or lost
    missing = ", ".join(card.address for card in lost)
    seen = f"{len(there)} on the bus, and the driver lists {len(gpus)}: {missing}"
    seen += " is missing" if len(lost) == 1 else " are missing"
    why = "it stopped answering, or did not start; what starts CUDA may hang"
    fix = "sudo dmesg | grep -iE 'nvrm|xid'; then power the machine off and on"
    said = machine.run("nvidia-smi", "drain", "-p", lost[0].address, "-q").out
    if drained := re.search(r"is: *draining", said):
        why = "it is being drained: somebody has set it aside (nvidia-smi drain)"
        fix = f"unless it is meant so: sudo nvidia-smi drain -p {lost[0].address} -m 0"
    elif kind.is_guest(machine):
        fix = "restart this virtual machine; where it stays so, have its host replaced or looked at"
    folder = "/proc/driver/nvidia/gpus"
    told = (machine.read(f"{folder}/{card.address}/information") or "" for card in lost)
    shut = any(map(_EXCLUDED.search, told))
    cause = None if shut else reasons.logged(machine, lost)
    if not (shut or cause or drained) and inside:
        return ok("all GPUs", f"{len(gpus)} listed; the files of {files} are here")
    old = all(card in legacy for card in lost)
    if shut or old:
        return _passed_over(seen) if shut else ok("all GPUs", f"{seen}: too old for this driver")
    if cause is not None:
        seen, why, fix = f"{seen}; {cause[0]}", cause[1], cause[2]
    others = ",".join(gpu.index for gpu in gpus)
    return fail("all GPUs", seen, why, f"{fix}; until then name the others: GPUS={others},")


def _legacy(machine: Machine, lost: list[pci.Card]) -> list[pci.Card]:
    """Those that the driver passes over, as ones that only an older branch knows."""
    told = log.last(machine, r"supported through the NVIDIA (\d+)\S* Legacy") or ""
    branch = re.search(r"NVIDIA (\d{1,4})", told)
    if branch is not None:
        return branches.passed_over(lost, branch.group(1))
    return branches.unknown_to(machine, lost)


def _passed_over(seen: str) -> Finding:
    return warn(
        "all GPUs",
        seen,
        "the driver was told to leave it alone (NVreg_ExcludedGpus)",
        "unless it is meant so, take that out of /etc/modprobe.d, build the initramfs anew, and"
        " reboot",
    )


def equal(machine: Machine) -> Finding:
    """All GPUs are of one kind and clock."""
    gpus = visible.seen(machine)
    if len(gpus) < 2:
        return skip("equal GPUs", "fewer than two GPUs")
    mixed = _of_two_worlds(gpus)
    if mixed is not None:
        return mixed
    names = {name for name in (gpu.text("name") for gpu in gpus) if name}
    clocks = [clock for clock in (gpu.number("clocks.max.sm") for gpu in gpus) if clock]
    used = {gpu.index for gpu in gpus}
    health = [gpu for gpu in nvidia.health(machine) if gpu.index in used]
    bios = {gpu.text("vbios_version") for gpu in health} - {None}
    # Cards for consumers come from many makers, each with a VBIOS of its own.
    watts = {gpu.number("power.default_limit") for gpu in (*health, *gpus)} - {None}
    alike = bool(watts) and len(watts) == 1 and len({*clocks}) == 1
    other = len(bios) > 1 and not any(map(nvidia.CONSUMER.search, names))
    # Of a board of eight Azure takes the whole node out of use.
    alike = alike and not any(map(nvidia.is_of_board, names))
    if len(names) == 1 and other and not alike:
        return warn(
            "equal GPUs",
            f"of one kind, with different VBIOS: {', '.join(sorted(map(str, bios)))}",
            "rules for power and clocks may differ: each step waits for the slowest",
            "ask who runs the machine, or the vendor",
        )
    if len(names) < 2 and (not clocks or min(clocks) > 0.95 * max(clocks)):
        return ok("equal GPUs", f"{len(gpus)} of one kind" + ", each VBIOS for itself" * other)
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


def _of_two_worlds(gpus: list[nvidia.Gpu]) -> Finding | None:
    """Cards that share a processor's memory beside others, which no program uses together.

    https://github.com/NVIDIA/dgx-spark-playbooks (station-ai-skills: mixed coherency)
    """
    coherent = [gpu for gpu in gpus if gpu.is_coherent]
    if not coherent or len(coherent) == len(gpus):
        return None
    other = next(gpu for gpu in gpus if gpu not in coherent)
    numbers = ",".join(gpu.row["index"] for gpu in coherent)
    return fail(
        "equal GPUs",
        f"{coherent[0].name} shares the processor's memory, and {other.name} does not",
        "one program cannot use both (mixed coherency): CUDA fails, or takes the first alone",
        f"export CUDA_VISIBLE_DEVICES={numbers}; docker run --gpus '\"device={numbers}\"'",
    )


def _odd(machine: Machine, gpus: list[nvidia.Gpu]) -> Finding | None:
    """Of the GPUs of a board with switches some are gone, from the bus as well."""
    if limits.in_container(machine.root):
        return None  # some may be given away
    size = (machine.read("/sys/class/dmi/id/product_name") or "").strip()
    whole = next((count for sign, count in _OF_SIZES if re.match(sign, size)), 0)
    boards = len(gpus) in (5, 6, 7) and all(nvidia.is_of_board(gpu.name) for gpu in gpus)
    switched = any(name.startswith("nvidia-nvswitch") for name in machine.names("/dev"))
    if len(gpus) < whole or (boards and switched and not kind.is_guest(machine)):
        return warn(
            "all GPUs",
            f"{len(gpus)}, and such a machine has {whole or 8}: the rest is not on the bus",
            "a job that counts on all of them does not start; the others are slower together",
            "stop and start it, which moves it to another host"
            if whole
            else "take all power from the machine, for a minute, and start it again; if it is not"
            " back, have the GPU's module serviced: nvidia-bug-report.sh",
        )
    if len(gpus) in _WHOLE or kind.is_guest(machine):
        return None
    if "In Progress" not in [gpu.text("fabric.state") for gpu in nvidia.health(machine)]:
        return None
    return fail(
        "all GPUs",
        f"{len(gpus)}, and such a board has 4 or 8: the rest is not on the bus",
        "the switches wait for all of them, and CUDA starts on none (802)",
        "take all power from the machine, for a minute, and start it again; if it is not back, have"
        " the GPU's module serviced: nvidia-bug-report.sh",
    )
