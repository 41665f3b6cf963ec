"""InfiniBand and its like: its ports are up and as fast as each other, and NCCL can use it."""

from __future__ import annotations

import re

from doctor import distribution, efa, nccl, peermem, ports, roce
from doctor.finding import Finding, ok, skip, warn
from host import fleet, limits
from host.machine import Machine

_ACTIVE = "ACTIVE"
_VERBS = "libibverbs.so.1"
_PROVIDERS = {
    **dict.fromkeys(("fedora", "rhel"), "sudo dnf install libibverbs"),
    "suse": "sudo zypper install libmlx5-1",
}
_UBUNTUS = "sudo apt-get install libibverbs1 ibverbs-providers"
_GIB = "/usr/local/gib/lib64"  # where Google's brings its own
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
    there = [
        (device, f"{nccl.FABRIC}/{device}/ports/{port}")
        for device in machine.names(nccl.FABRIC)
        for port in machine.names(f"{nccl.FABRIC}/{device}/ports")
    ]
    if not there:
        card = _without_ports(machine)
        return card or skip("InfiniBand", "no InfiniBand, RoCE or EFA")
    up = [(d, path) for d, path in there if _ACTIVE in (machine.read(f"{path}/state") or "")]
    if not up:
        return _down(machine, there)
    device, path = up[0]
    kind = machine.read(f"{path}/link_layer") or ""
    kind = {"Ethernet": "RoCE", "Unspecified": "EFA"}.get(kind, kind or "InfiniBand")
    rate = machine.read(f"{path}/rate") or "an unknown rate"
    seen = f"{len(up)} of {len(there)} ports up; {device}: {kind}, {rate}"
    # One without a cable says the same: it is not for us to know, unless it had a link.
    polling = [d for d, p in there if "Polling" in (machine.read(f"{p}/phys_state") or "")]
    seen += f"; no link at {', '.join(polling)}" if polling else ""
    trouble = (
        ports.failing(machine, there, up)
        or _ignored(machine, kind)
        or _handed_over(machine)
        or (roce.wrong(machine, up) if kind == "RoCE" else None)
        or (roce.unopened(machine) if kind != "EFA" else None)
        or peermem.refused(machine)
        or _trouble(machine, kind)
    )
    if trouble is None:
        return ok("InfiniBand", seen)
    more, why, fix = trouble
    return warn("InfiniBand", f"{seen}{more}", why, fix)


def _down(machine: Machine, there: list[tuple[str, str]]) -> Finding:
    """None of its ports is up."""
    device, path = there[0]
    state = machine.read(f"{path}/state") or "not known"
    linked = "LinkUp" in (machine.read(f"{path}/phys_state") or "")
    if (
        linked
        and ports.serve_training(machine)
        and "InfiniBand" in (machine.read(f"{path}/link_layer") or "")
    ):
        return warn(
            "InfiniBand",
            f"{device}: {state}, and its link is up",
            "no subnet manager has brought the port up: several machines talk over TCP",
            "start one (opensm, UFM). A virtual function (SR-IOV) also needs GUIDs (ip link set"
            " PF vf N node_guid … port_guid …), linkState: enable, and a manager that serves"
            " virtual ports",
        )
    ethernet = [ports.over_ethernet(machine, p) for _, p in there]
    bare = (
        not linked
        and not fleet.several(machine.environ)
        and re.search("Polling|Disabled|Sleep", machine.read(f"{path}/phys_state") or "")
    )
    if bare and not all(ethernet):
        return ok("InfiniBand", f"{device}: {state}; no cable, or off, and one machine needs none")
    if all(ethernet) and not fleet.several(machine.environ):
        # As a Spark has them, or a server: ports that nobody needs to train on one machine.
        return ok("InfiniBand", f"{device}: {state}; Ethernet, which one machine does not need")
    return warn(
        "InfiniBand",
        f"{device}: {state}",
        "several machines talk over TCP, many times slower",
        "look at cable and switch (`ibstat`)"
        + "; InfiniBand needs a subnet manager (opensm)" * (not all(ethernet)),
    )


def _without_ports(machine: Machine) -> Finding | None:
    """A card is on the bus, and its driver has made no port."""
    bus = "/sys/bus/pci/devices"
    if not fleet.several(machine.environ) or limits.in_container(machine.root):
        return None
    bare = efa.unbound(machine)
    if bare is not None:
        return bare
    of_its_class = (
        name
        for name in machine.names(bus)
        if (machine.read(f"{bus}/{name}/class") or "").startswith("0x0207")
        and (machine.read(f"{bus}/{name}/vendor") or "0x15b3") == "0x15b3"
        and "vfio" not in machine.real(f"{bus}/{name}/driver")
    )
    card = next(of_its_class, None)
    if card is None:
        return None
    return warn(
        "InfiniBand",
        f"a card is on the bus ({card}), and there is no port",
        "its driver is not loaded: several machines talk over TCP, many times slower",
        "sudo modprobe mlx5_ib; after a new kernel NVIDIA's OFED is to be built anew; sudo dmesg |"
        " grep mlx5",
    )


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


def _trouble(machine: Machine, kind: str) -> tuple[str, str, str] | None:
    """What is not well though a port is up: what is seen, why it matters, what helps."""
    within = limits.in_container(machine.root) and machine.names("/dev")
    several = fleet.several(machine.environ)
    alone = not ports.serve_training(machine)
    # A node of a cluster's, of several ports; pods get theirs from a plugin, where they want any.
    many = len(machine.names(nccl.FABRIC)) > 1
    pod = "KUBERNETES_SERVICE_HOST" in machine.environ
    if within and not machine.names("/dev/infiniband"):
        return (
            None
            if alone or not (several or kind == "EFA" or (many and not pod))
            else (  # it is the host's, and one GPU needs none
                "; this container was not given /dev/infiniband",
                "NCCL talks over TCP, many times slower, or fails",
                (
                    "start the container with --device /dev/infiniband --ulimit memlock=-1"
                    " --network host; in Kubernetes the device plugin of the fabric (EFA, RDMA)"
                ),
            )
        )
    listed = machine.run("ldconfig", "-p").out
    if kind == "EFA" and (several or machine.environ.get("FI_PROVIDER") == "efa"):
        return efa.wanting(machine, listed)
    direct = several or (kind == "InfiniBand" and not alone and many)
    apart = peermem.missing(machine) if kind != "EFA" and direct else None
    if apart is not None:
        return apart
    # One machine alone has no use of it, and the image has it.
    asked = several or limits.in_container(machine.root)
    inside = machine.has("docker") and machine.environ.get("ENGINE") != "local"
    names = [name for place in _LIBRARIES for name in machine.names(place)]
    known = f"{_VERBS} " in listed or _VERBS in (*names, *machine.names(_GIB))
    whole = "libc.so.6" in (*names, *listed.split())
    lacking = known and several and _without_provider(machine)
    if kind != "EFA" and lacking and not inside:
        return lacking
    if kind != "EFA" and asked and not inside and not known and whole:
        return (
            "; libibverbs is not installed",
            "NCCL talks over TCP, many times slower",
            distribution.of(machine, _PROVIDERS, _UBUNTUS),
        )
    return None


def _without_provider(machine: Machine) -> tuple[str, str, str] | None:
    """libibverbs, without the library that knows NVIDIA's cards.

    https://github.com/horovod/horovod/issues/1117
    """
    cards = any(name.startswith("mlx5") for name in machine.names(nccl.FABRIC))
    folders = [f"{place}/libibverbs" for place in _LIBRARIES]
    found = [name for folder in folders for name in machine.names(folder)]
    told = machine.exists("/etc/libibverbs.d/mlx5.driver")
    if not cards or told or not found or any("mlx5" in name for name in found):
        return None
    return (
        "; libibverbs has no driver for these cards (libmlx5)",
        "NCCL talks over TCP, many times slower",
        distribution.of(machine, _PROVIDERS, "sudo apt-get install ibverbs-providers"),
    )


def _ignored(machine: Machine, kind: str) -> tuple[str, str, str] | None:
    """Several machines train, and a variable has NCCL pass it over: not Amazon's, by a plugin."""
    told = nccl.told(machine, "NCCL_IB_DISABLE")
    if nccl.told(machine, "NCCL_NET").lower() == "socket" and fleet.several(machine.environ):
        return (
            "; NCCL_NET=Socket",
            "between machines NCCL goes over TCP, many times slower",
            nccl.undo(machine, "NCCL_NET"),
        )
    if told in ("", "0") or kind == "EFA" or not fleet.several(machine.environ):
        return None
    return (
        f"; NCCL_IB_DISABLE={told}",
        "between machines NCCL goes over TCP, many times slower: that turns RoCE off, too",
        nccl.undo(machine, "NCCL_IB_DISABLE"),
    )
