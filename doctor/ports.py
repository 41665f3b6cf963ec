"""Ports of InfiniBand and its like: whether their links hold, and are as fast as each other."""

from __future__ import annotations

import re

from doctor import log, nccl
from host import fleet, kernel, nvidia
from host.machine import Machine
from host.text import number, whole

_FLAPS = 20  # times, of one that is up
_OF_CLUSTERS = 4  # GPUs
_FELL = 2  # times that a link may have gone down, by hands
_STARTING = 300  # seconds in which a machine starts


def serve_training(machine: Machine) -> bool:
    """Whether several machines train over them, or a cluster's could: a workstation's one port may
    be there for a file server.
    """
    if fleet.several(machine.environ):
        return True
    if fleet.alone(machine.environ):
        return False
    folders = [f"{nccl.FABRIC}/{name}/ports" for name in machine.names(nccl.FABRIC)]
    many = sum(len(machine.names(folder)) for folder in folders) > 1
    gpus = nvidia.ask(machine)[1]
    large = not any(nvidia.CONSUMER.search(gpu.name) for gpu in gpus)
    return len(gpus) >= _OF_CLUSTERS or (len(gpus) > 1 and (many or large))


def over_ethernet(machine: Machine, path: str) -> bool:
    """Whether a port is one of Ethernet, which often has one lane."""
    return (machine.read(f"{path}/link_layer") or "") == "Ethernet"


def failing(
    machine: Machine, there: list[tuple[str, str]], up: list[tuple[str, str]]
) -> tuple[str, str, str] | None:
    """What is wrong with a port: what is seen, why it matters, what helps.

    Args:
        there: all ports, each with its device and its folder.
        up: those that are up.
    """
    left = nccl.adapters(machine, [device for device, _ in there])
    taken = [each for each in there if each[0] in left and _matters(machine, each[1])]
    good = [each for each in up if each in taken]
    return (
        _falling(machine, taken, good)
        or _slower(machine, good)
        or _worn(machine, good)
        or _hungry(machine)
    )


def _matters(machine: Machine, path: str) -> bool:
    """Whether a training may go by a port: by one of Ethernet, where several machines train."""
    return fleet.several(machine.environ) or not over_ethernet(machine, path)


def _falling(
    machine: Machine, ports: list[tuple[str, str]], up: list[tuple[str, str]]
) -> tuple[str, str, str] | None:
    """A port that is down, and whose link came and went."""
    for device, path in ports:
        times = whole(machine.read(f"{path}/counters/link_downed")) or 0
        off = "Disabled" in (machine.read(f"{path}/phys_state") or "")  # by hand
        if (device, path) not in up and times > _FELL and not off:
            return (
                f"; {device} went down {times} times, and is down",
                "NCCL over several machines hangs or ends (Got async event: port error)",
                (
                    f"another cable or port of the switch (ibstat {device}), a rented machine: take"
                    f" another; until then NCCL_IB_HCA=^{device}"
                ),
            )
    return None


def _worn(machine: Machine, up: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """A port that is up now, and came and went; a module that is too hot; half of its lanes."""
    for device, path in up:
        times = whole(machine.read(f"{path}/counters/link_downed")) or 0
        others = [
            whole(machine.read(f"{other}/counters/link_downed")) for _, other in up if other != path
        ]
        alone = len(others) >= _OF_CLUSTERS and set(others) == {0} and times > _FELL
        if times >= _FLAPS or alone:
            return (
                f"; {device} went down {times} times, and is up just now",
                "NCCL over several machines ends when it goes again",
                (
                    f"another cable or port of the switch (ibstat {device}); until then"
                    f" NCCL_IB_HCA=^{device}"
                ),
            )
    if log.last(machine, r"mlx\d_core .*High Temperature"):
        return (
            "; the module of a cable is too hot (kernel log: High Temperature)",
            "its link goes down, or will",
            "sudo mlxlink -d DEVICE -m says which; see to its cooling, or take another module",
        )
    dead = re.search(
        r"mlx5_core (\S+): .*(?:device's health compromised|irisc not responding)",
        log.last(machine, r"mlx5_core \S+: .*(?:health compromised|irisc not responding)") or "",
    )
    if dead is not None and not _again(machine, dead.group(1)):
        return (
            f"; the firmware of the card at {dead.group(1)} does not answer (kernel log)",
            "what goes through it fails",
            (
                "power the machine off and on; if it comes back, newer firmware, or have the card"
                " replaced; until then NCCL_IB_HCA=^ its name"
            ),
        )
    row = log.last(machine, r"mlx\d_core .* limited by .* x\d+ link at .*capable of") or ""
    slow = re.search(
        r"mlx\d_core (\S+): ([\d.]{1,9}) Gb/s avail.* limited by (.* x\d+ link).* (x\d+) link", row
    )
    rates = [number(machine.read(f"{path}/rate")) or 0.0 for _, path in up]
    fastest = max(rates, default=0.0)
    if slow is None or (number(slow.group(2)) or 0.0) >= fastest:
        return None
    return (
        f"; the card at {slow.group(1)} has a {slow.group(3)}, and could have {slow.group(4)}",
        "it carries less than its port could, and all machines wait for it",
        "reboot; if it stays, seat the card again, or another slot",
    )


def _again(machine: Machine, address: str) -> bool:
    """Whether the driver says later that a card's firmware answers."""
    rows = [row for row in log.lines(machine) or [] if f" {address}: " in row]
    told = [row for row in rows if re.search("health compromised|irisc not|recovery succe", row)]
    return bool(told) and "recovery succe" in told[-1]


def _slower(machine: Machine, up: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """A port that is slower than one of the same board, or whose cable has one lane of four."""
    best: dict[str, float] = {}
    ports = []
    for device, path in up:
        board = machine.read(f"{nccl.FABRIC}/{device}/board_id") or device
        said = machine.read(f"{path}/rate") or ""
        rate = number(said)
        if rate is not None:
            best[board] = max(rate, best.get(board, 0.0))
            single = "(1X" in said and not over_ethernet(machine, path)
            ports.append((device, path.rsplit("/", 1)[1], board, rate, single))
    for device, port, board, rate, single in ports:
        if rate < best[board] or single:
            beside = (
                f"{rate:g} of {best[board]:g} Gb/s"
                if rate < best[board]
                else f"{rate:g} Gb/s over one lane"
            )
            return (
                f"; {device} port {port}: {beside}",
                "all machines wait for the slowest of their links",
                (
                    f"ibstat {device}; clean or change that cable, look at the switch's port;"
                    f" sudo mlxlink -d {device} -p {port}   # says why"
                ),
            )
    return None


def _hungry(machine: Machine) -> tuple[str, str, str] | None:
    """A card whose slot gives it too little power, says its driver, and did not say at the start.

    Many a sound server says it at each start, of the cards beside those of InfiniBand.
    """
    row = log.last(machine, r"mlx5_core \S+: .*insufficient power on the PCIe slot") or ""
    told = re.search(r"mlx5_core (\S+): .*slot \((\d+) ?W\)", row)
    spark = any("GB10" in gpu.name for gpu in nvidia.ask(machine)[1])  # says so, and is well
    at = kernel.TIME.search(row)
    if told is None or spark or (at and float(at.group(1)) < _STARTING):
        return None
    return (
        f"; {told.group(1)}: its slot gives it {told.group(2)} W, which is too little",
        "the link may fail under load",
        "have the machine serviced: power of that slot, or seat the card in another one",
    )
