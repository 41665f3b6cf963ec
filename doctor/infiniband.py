"""InfiniBand and its like: its ports are up and as fast as each other, and NCCL can use it."""

from __future__ import annotations

import re

from doctor import log, peermem, roce
from doctor.finding import Finding, ok, skip, warn
from host import limits
from host.machine import Machine
from host.text import number, whole

_FABRIC = "/sys/class/infiniband"
_ACTIVE = "ACTIVE"
_VERBS = "libibverbs.so.1"
_FLAPS = 20  # times, of one that is up
_FELL = 2  # times that a link may have gone down, by hands
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def fabric(machine: Machine) -> Finding:
    """InfiniBand, RoCE or EFA: its ports are up, and NCCL can use it.

    https://docs.kernel.org/admin-guide/abi-stable.html (infiniband), and NCCL's own
    `Failed to open libibverbs.so[.1]` (https://github.com/NVIDIA/nccl/issues/1410).
    """
    ports = [
        (device, f"{_FABRIC}/{device}/ports/{port}")
        for device in machine.names(_FABRIC)
        for port in machine.names(f"{_FABRIC}/{device}/ports")
    ]
    if not ports:
        return skip("InfiniBand", "no InfiniBand, RoCE or EFA")
    up = [(d, path) for d, path in ports if _ACTIVE in (machine.read(f"{path}/state") or "")]
    if not up:
        device, path = ports[0]
        state = machine.read(f"{path}/state") or "not known"
        linked = "LinkUp" in (machine.read(f"{path}/phys_state") or "")
        if linked and "InfiniBand" in (machine.read(f"{path}/link_layer") or ""):
            return warn(
                "InfiniBand",
                f"{device}: {state}, and its link is up",
                "no subnet manager has brought the port up: several machines talk over TCP",
                "start one (opensm, UFM). A virtual function (SR-IOV) also needs GUIDs (ip link set"
                " PF vf N node_guid … port_guid …), linkState: enable, and a manager that serves"
                " virtual ports",
            )
        return warn(
            "InfiniBand",
            f"{device}: {state}",
            "several machines talk over TCP, many times slower",
            "look at cable and switch (`ibstat`); InfiniBand needs a subnet manager (opensm)",
        )
    device, path = up[0]
    kind = machine.read(f"{path}/link_layer") or ""
    kind = {"Ethernet": "RoCE", "Unspecified": "EFA"}.get(kind, kind or "InfiniBand")
    rate = machine.read(f"{path}/rate") or "an unknown rate"
    seen = f"{len(up)} of {len(ports)} ports up; {device}: {kind}, {rate}"
    # One without a cable says the same: it is not for us to know, unless it had a link.
    polling = [d for d, p in ports if "Polling" in (machine.read(f"{p}/phys_state") or "")]
    seen += f"; no link at {', '.join(polling)}" if polling else ""
    trouble = (
        _falling(machine, ports, up)
        or _slower(machine, up)
        or _worn(machine, up)
        or _hungry(machine)
        or _ignored(machine, kind)
        or _handed_over(machine)
        or (roce.wrong(machine, device, path) if kind == "RoCE" else None)
        or (roce.unopened(machine) if kind != "EFA" else None)
        or peermem.refused(machine)
        or _trouble(machine, kind)
    )
    if trouble is None:
        return ok("InfiniBand", seen)
    more, why, fix = trouble
    return warn("InfiniBand", f"{seen}{more}", why, fix)


def _handed_over(machine: Machine) -> tuple[str, str, str] | None:
    """Memory that the kernel keeps for another one (kexec handover), and hands out meanwhile."""
    said = machine.read("/proc/meminfo") or ""
    found = re.search(r"^CmaTotal: +(\d{1,15}) kB\nCmaFree: +(\d{1,15}) kB", said, re.MULTILINE)
    total, free = map(int, found.groups()) if found else (0, 0)
    if free <= total:
        return None
    return (
        f"; {free >> 10} MiB of memory for devices are free (CmaFree), of {total >> 10} (CmaTotal)",
        "it cannot be pinned: NCCL ends at ibv_reg_mr_iova2, Cannot allocate memory",
        "boot with kho=off, on each machine, or a kernel before 7.0",
    )


def _falling(
    machine: Machine, ports: list[tuple[str, str]], up: list[tuple[str, str]]
) -> tuple[str, str, str] | None:
    """A port that is down, and whose link came and went."""
    for device, path in ports:
        times = whole(machine.read(f"{path}/counters/link_downed")) or 0
        if (device, path) not in up and times > _FELL:
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
        if times >= _FLAPS:
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


def _slower(machine: Machine, up: list[tuple[str, str]]) -> tuple[str, str, str] | None:
    """A port that is slower than one of the same board, or whose cable has one lane of four."""
    best: dict[str, float] = {}
    ports = []
    for device, path in up:
        board = machine.read(f"{_FABRIC}/{device}/board_id") or device
        said = machine.read(f"{path}/rate") or ""
        rate = number(said)
        if rate is not None:
            best[board] = max(rate, best.get(board, 0.0))
            ports.append((device, path.rsplit("/", 1)[1], board, rate, "(1X" in said))
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
    """A card whose slot gives it too little power, says its driver."""
    row = log.last(machine, r"mlx5_core \S+: .*insufficient power on the PCIe slot")
    told = re.search(r"mlx5_core (\S+): .*slot \((\d+) ?W\)", row or "")
    if told is None:
        return None
    return (
        f"; {told.group(1)}: its slot gives it {told.group(2)} W, which is too little",
        "the link may fail under load",
        "have the machine serviced: power of that slot, or seat the card in another one",
    )


def _trouble(machine: Machine, kind: str) -> tuple[str, str, str] | None:
    """What is not well though a port is up: what is seen, why it matters, what helps."""
    within = limits.in_container(machine.root) and machine.names("/dev")
    if within and not machine.names("/dev/infiniband"):
        return (
            "; this container was not given /dev/infiniband",
            "NCCL talks over TCP, many times slower, or fails",
            (
                "start the container with --device /dev/infiniband --ulimit memlock=-1 --network"
                " host; in Kubernetes the device plugin of the fabric (EFA, RDMA)"
            ),
        )
    several = _is_one_of_several(machine)
    if kind == "EFA" and several:
        return (
            "",
            "NCCL takes it only by a plugin of Amazon's; else TCP",
            "install aws-ofi-nccl, or build on an image that has it: BASE_IMAGE=…",
        )
    apart = peermem.missing(machine) if kind == "InfiniBand" else None
    if apart is not None:
        return apart
    # One machine alone has no use of it, and the image has it.
    asked = several or limits.in_container(machine.root)
    inside = machine.has("docker") and machine.environ.get("ENGINE") != "local"
    listed = machine.run("ldconfig", "-p").out
    names = [name for place in _LIBRARIES for name in machine.names(place)]
    known = f"{_VERBS} " in listed or _VERBS in names
    whole = "libc.so.6" in (*names, *listed.split())
    if kind != "EFA" and asked and not inside and not known and whole:
        return (
            "; libibverbs is not installed",
            "NCCL talks over TCP, many times slower",
            "sudo apt-get install libibverbs1 ibverbs-providers",
        )
    return None


def _ignored(machine: Machine, kind: str) -> tuple[str, str, str] | None:
    """Several machines train, and a variable has NCCL pass it over: not Amazon's, by a plugin."""
    told = machine.environ.get("NCCL_IB_DISABLE", "")
    if told in ("", "0") or kind == "EFA" or not _is_one_of_several(machine):
        return None
    return (
        f"; NCCL_IB_DISABLE={told}",
        "between machines NCCL goes over TCP, many times slower: that turns RoCE off, too",
        "unset NCCL_IB_DISABLE",
    )


def _is_one_of_several(machine: Machine) -> bool:
    """Whether several machines train together here, as make or Slurm was told."""
    told = machine.environ.get("NODES") or machine.environ.get("SLURM_JOB_NUM_NODES", "")
    return told not in ("", "1")
