"""What connects this machine with others: its interfaces, InfiniBand and its like."""

from __future__ import annotations

from doctor.finding import Finding, fail, ok, skip, warn
from host.machine import Machine

_NET, _FABRIC = "/sys/class/net", "/sys/class/infiniband"
_ACTIVE = "ACTIVE"
_VERBS = "libibverbs.so.1"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def interfaces(machine: Machine) -> Finding:
    """The interfaces that are up, and that the libraries are sent to one that there is.

    NCCL says `address with family 59936` of one that there is not:
    https://github.com/NVIDIA/nccl/issues/1837
    """
    names = machine.names(_NET)
    if not names:
        return skip("network", "not known on this system")
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        asked = machine.environ.get(variable, "")
        if asked and not _chosen(variable, asked, names):
            return fail(
                "network",
                f"{variable}={asked} names no interface; there are {', '.join(names)}",
                "the processes do not find each other",
                f"unset {variable}, or name one of them",
            )
    found = []
    for name in names:
        real = machine.exists(f"{_NET}/{name}/device")  # not a bridge, a tunnel or a container's
        if real and machine.read(f"{_NET}/{name}/operstate") == "up":
            speed = machine.read(f"{_NET}/{name}/speed") or ""  # Mbit/s; -1 or none where unknown
            found.append(f"{name} {int(speed) / 1000:g} Gbit/s" if speed.isdigit() else name)
    return ok("network", ", ".join(found)) if found else skip("network", "no interface is up")


def _chosen(variable: str, asked: str, names: list[str]) -> list[str]:
    """Which interfaces a variable means; NCCL takes beginnings, `=` whole names, `^` all others."""
    words = asked.lstrip("^=").split(",")
    exact = asked.lstrip("^").startswith("=") or variable.startswith("GLOO")
    if exact:
        found = [name for name in names if name in words]
    else:
        found = [name for name in names if any(word and name.startswith(word) for word in words)]
    return [name for name in names if name not in found] if asked.startswith("^") else found


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
    if kind == "EFA":
        return warn(
            "InfiniBand",
            seen,
            "NCCL takes it only by a plugin of Amazon's; else TCP",
            "install aws-ofi-nccl, or build on an image that has it: BASE_IMAGE=…",
        )
    # The image has it.
    inside = machine.has("docker") and machine.environ.get("ENGINE") != "local"
    if not inside and not any(machine.exists(f"{place}/{_VERBS}") for place in _LIBRARIES):
        return warn(
            "InfiniBand",
            f"{seen}; libibverbs is not installed",
            "NCCL talks over TCP, many times slower",
            "sudo apt-get install libibverbs1 ibverbs-providers",
        )
    return ok("InfiniBand", seen)
