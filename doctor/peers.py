"""What keeps the machines of one training from reaching each other."""

from __future__ import annotations

import re
from contextlib import suppress

from doctor import nccl, walls, wsl
from doctor.finding import Finding, warn
from host import fleet, limits, nodes, nvidia, visible
from host.errors import UsageError
from host.machine import Machine
from host.text import whole

_NET = "/sys/class/net"
# Docker's own, those that Compose makes, and Podman's, unless they are told others.
BRIDGE = re.compile(r"172\.17\.|172\.(1[89]|2\d|3[01])\.0\.|10\.8[89]\.0\.")
_OF_A_LAUNCHER = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
ASK_ADDRESSES = ("ip", "-o", "-4", "addr")
_UNKNOWN = 2  # what getent ends with
_LISTENS = "0A"
_RANKS = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SLURM_NODEID")
_CHOOSE = "name the one that reaches the others: NCCL_SOCKET_IFNAME={0} GLOO_SOCKET_IFNAME={0}"


def apart(machine: Machine) -> Finding | None:
    """What is wrong where several machines train together; None elsewhere."""
    if not fleet.several(machine.environ):
        shut = walls.shut(machine) if _meets_others(machine) else None
        return shut or _without_localhost(machine)
    addresses = _addresses(machine)
    return (
        _on_a_bridge(machine, addresses)
        or _behind_windows(machine, addresses)
        or _itself(machine, addresses)
        or _taken(machine)
        or _another_interface(machine, addresses)
        or walls.shut(machine)
        or _misnamed(machine, addresses)
    )


def _without_localhost(machine: Machine) -> Finding | None:
    """The name by which the processes of one machine meet means nothing."""
    contained = machine.has("docker") and machine.environ.get("ENGINE") != "local"
    said = machine.read("/etc/hosts")
    named = re.search(r"(?m)^[^#\n]*\slocalhost(?=\s|$)", said or "")
    if not said or named or contained or len(visible.seen(machine)) < 2:
        return None
    if machine.run("getent", "hosts", "localhost").code != _UNKNOWN:
        return None
    return warn(
        "network",
        "localhost means nothing on this machine (/etc/hosts)",
        "processes of one machine meet there: torchrun --standalone ends with gai error -2 or -3",
        "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts",
    )


def _meets_others(machine: Machine) -> bool:
    """Whether its variables are those of somebody who trains with other machines."""
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    told = {machine.environ.get(name, "").strip("=") for name in names}
    alone = fleet.alone(machine.environ) or len(visible.seen(machine)) < 2
    return len(told) == 1 and not alone and not re.match(r"lo$|eth0$|docker0$|\^|$", min(told))


# Bridges of Docker's and Podman's containers, and of virtual machines; Kubernetes routes its own
# between all nodes.
_OF_GUESTS = re.compile(
    r"br-[0-9a-f]{12}$|virbr\d|podman\d|(?:lxd|lxc|incus)br\d|vboxnet|vmnet"
    r"|tailscale|zt\w{8}|wg\d|tun\d"  # a private network over others: slow, where it reaches them
)


def _addresses(machine: Machine) -> dict[str, str]:
    """The first address (IPv4) of each interface but the loopback."""
    rows = machine.run(*ASK_ADDRESSES).out.splitlines()
    found = (re.match(r"\d+: (\S+?)(?:@\S+)? +inet (\d[\d.]*)/", row) for row in rows)
    first: dict[str, str] = {}
    for each in found:
        if each and each.group(1) != "lo":
            first.setdefault(each.group(1), each.group(2))
    return first


def _on_a_bridge(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """A container on the engine's bridge, which other machines do not see.

    https://github.com/NVIDIA/nccl/issues/929
    """
    # A cluster may give its pods that network, and route it.
    if not limits.in_container(machine.root) or "KUBERNETES_SERVICE_HOST" in machine.environ:
        return None
    if not addresses or not all(map(BRIDGE.match, addresses.values())):
        return None
    usual = all(address.startswith("172.17.") for address in addresses.values())
    if not usual and any(machine.exists(f"{_NET}/{name}/device") for name in addresses):
        return None
    return warn(
        "network",
        f"this container has only {' and '.join(addresses.values())}, of a bridge of the engine's",
        "other machines do not reach it: processes wait for each other, and NCCL ends",
        "start the container with --network host (Compose: network_mode: host), or in an overlay"
        " network of Swarm's",
    )


def _behind_windows(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """WSL has a network of its own behind Windows, unless it is told otherwise.

    https://learn.microsoft.com/windows/wsl/networking
    """
    if not wsl.is_windows(machine) or not addresses:
        return None
    mode = machine.run("wslinfo", "--networking-mode").out.strip()
    if mode not in ("nat", ""):
        return None
    if not mode and not all(re.match(r"172\.(1[6-9]|2\d|3[01])\.", a) for a in addresses.values()):
        return None
    return warn(
        "network",
        f"this machine has only {' and '.join(addresses.values())}, behind Windows (NAT)",
        "other machines do not reach it: processes wait for each other",
        "in Windows networkingMode=mirrored under [wsl2] in .wslconfig, wsl --shutdown, and"
        " Hyper-V's firewall open for WSL",
    )


def _itself(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """A machine that is not the first is told that the first one is itself."""
    environ = machine.environ
    master = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR") or ""
    rank = next((environ[name] for name in _RANKS if name in environ), "0")
    own = {(machine.read("/proc/sys/kernel/hostname") or "-").strip(), *addresses.values()}
    itself = re.match(r"127\.|localhost$|::1$|0\.0\.0\.0$", master) or master in own
    # Two of them may be tried on one machine, with a part of its GPUs each.
    part = len(visible.seen(machine)) < len(nvidia.ask(machine)[1])
    if rank in ("", "0") or not itself or part:
        return None
    return warn(
        "network",
        f"MASTER_ADDR={master} is this machine, which is number {rank}",
        "it waits for itself, and the first machine waits for it",
        "MASTER_ADDR= the first machine's address, the same on all",
    )


def _taken(machine: Machine) -> Finding | None:
    """The port where they meet belongs to somebody else already."""
    environ, rank, port = machine.environ, None, None
    with suppress(UsageError):
        told = nodes.told(environ)
        rank, port = (told.rank, told.port) if told else (None, None)
    if rank is None and environ.get("RANK") == "0":
        rank, port = 0, whole(environ.get("MASTER_PORT")) or nodes.PORT
    if rank != 0 or port is None or any(name in environ for name in _OF_A_LAUNCHER):
        return None  # the launcher's own listens
    rows = [
        row.split()
        for file in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in (machine.read(file) or "").splitlines()[1:]
    ]
    held = [r for r in rows if len(r) > 3 and r[3] == _LISTENS and r[1].endswith(f":{port:04X}")]
    if not held:
        return None
    return warn(
        "network",
        f"port {port}, where the machines are to meet, is taken here",
        "the first of them ends: Address already in use; another training, or what is left of one",
        f"sudo ss -ltnp 'sport = :{port}' says whose it is; or MASTER_PORT= another, on all",
    )


def _meets(master: str, name: str, own: str) -> bool:
    """Whether an interface is in the network in which the first machine is named."""
    parts = 1 if name.startswith("tailscale") else 3  # 100.64.0.0/10
    return "." in master and master.split(".")[:parts] == own.split(".")[:parts]


def _another_interface(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """NCCL would choose an interface that no other machine reaches: the first one, unless there is
    InfiniBand.

    https://github.com/NVIDIA/nccl/issues/913
    """
    if nccl.told(machine, "NCCL_SOCKET_IFNAME") or any(name.startswith("ib") for name in addresses):
        return None
    up = [
        name
        for name in addresses
        if machine.read(f"{_NET}/{name}/operstate") != "down" and not name.startswith("docker")
    ]
    first = up[0] if up else ""
    # Where they meet by it, it is meant.
    meet = [n for n in up if _meets(machine.environ.get("MASTER_ADDR", ""), n, addresses[n])]
    inner = [n for n in up if _OF_GUESTS.match(n) and n not in meet]
    named = machine.environ.get("NODES")  # make train names the one that has this one's address
    if first and inner and not named and first not in inner and not machine.names(nccl.FABRIC):
        return warn(
            "network",
            f"NCCL uses {', '.join(inner)} beside {first}: others reach it slowly, or not at all",
            "without InfiniBand it takes each that is up: Connection refused, or it hangs",
            _CHOOSE.format(first),
        )
    # Of this link alone, as a management controller's; or of a container's own pair.
    if not addresses.get(first, "").startswith("169.254.") and not first.startswith("veth"):
        return None
    others = [n for n in up if not addresses[n].startswith("169.254.") and "veth" not in n]
    good = next((n for n in others if machine.exists(f"{_NET}/{n}/device")), "")
    return warn(
        "network",
        f"NCCL takes {first} ({addresses[first]}), which other machines do not reach",
        "it is the first interface that is up: Connection refused, timed out, or it hangs",
        _CHOOSE.format(good or (others or ["THAT_ONE"])[0]),
    )


def _misnamed(machine: Machine, addresses: dict[str, str]) -> Finding | None:
    """This machine's name means itself alone, or nothing, or another machine: gloo tells the others
    that address, or the loopback.

    make train names an interface, and does not ask for the name.
    """
    told = ("GLOO_SOCKET_IFNAME", "NODES", "SLURM_JOB_ID")
    name = (machine.read("/proc/sys/kernel/hostname") or "").strip()
    if not name or any(machine.environ.get(word) for word in told):
        return None
    answer = machine.run("getent", "hosts", name)
    found = re.match(r"([\d.]+|[0-9a-f:]+)\s", answer.out)
    means = found.group(1) if found else ""
    itself = means.startswith("127.") or means == "::1"
    mine = re.findall(r" inet ([\d.]+)[/ ]", machine.run(*ASK_ADDRESSES).out)
    other = bool(addresses) and "." in means and means not in mine
    if answer.code == _UNKNOWN:
        means = "nothing"
    elif not itself and not other:
        return None
    return warn(
        "network",
        f"this machine's name, {name}, means {means} here (/etc/hosts)",
        "gloo tells the others to connect there, or to the loopback: Connection refused",
        "give it this machine's own address there, on each machine; or GLOO_SOCKET_IFNAME= the"
        " interface that reaches the others",
    )
