"""What connects this machine with others: its interfaces, and what NCCL is told of them."""

from __future__ import annotations

import re

from doctor import named, nccl, peers, walls
from doctor.finding import Finding, fail, ok, skip, warn
from host import fleet, nvidia, visible
from host.machine import Machine
from host.text import whole

_NET = "/sys/class/net"
_SLOW = 100  # Mbit/s


def interfaces(machine: Machine) -> Finding:
    """The interfaces that are up, and that the libraries are sent to one that there is.

    NCCL says `address with family 59936` of one that there is not:
    https://github.com/NVIDIA/nccl/issues/1837
    """
    names = machine.names(_NET)
    if not names:
        return skip("network", "not known on this system")
    other = _of_another_machine(machine) or _of_another_network(machine) or _without_names(machine)
    if other is not None:
        return other
    # One GPU meets nobody, whatever a cluster tells all its machines.
    told = "GLOO_SOCKET_IFNAME" in machine.environ
    seen = visible.seen(machine)
    meets = told or fleet.several(machine.environ) or any(gpu.is_integrated for gpu in seen)
    alone = len(seen) == 1 and not meets
    other = (None if alone else named.astray(machine, names)) or peers.apart(machine)
    if other is not None:
        return other
    found, slow, known = [], [], 0
    for name in names:
        real = machine.exists(f"{_NET}/{name}/device")  # not a bridge, a tunnel or a container's
        if real and machine.read(f"{_NET}/{name}/operstate") == "up":
            speed = whole(machine.read(f"{_NET}/{name}/speed")) or -1  # Mbit/s; -1: not known
            found.append(f"{name} {speed / 1000:g} Gbit/s" if speed > 0 else name)
            slow += [(name, speed)] * (0 < speed <= _SLOW)
            known += not (name.startswith("wl") or machine.exists(f"{_NET}/{name}/phy80211"))
    # One of several may be there for the machine's management alone.
    told = any(nccl.told(machine, name) for name in named.CHOICES)
    used = [
        x for x in slow if (named.is_named(machine, x[0], names) if told else len(slow) == known)
    ]
    if used and fleet.several(machine.environ):
        return warn(
            "network",
            f"{used[0][0]} has a link of {used[0][1]} Mbit/s",
            "a card of today has a tenfold of that at the least: each step waits for it",
            "another cable (all eight wires), another port of the switch",
        )
    wall = walls.unread(machine)
    return (
        ok("network", ", ".join(found) + wall) if found else skip("network", "no interface is up")
    )


def _without_names(machine: Machine) -> Finding | None:
    """Docker is told to give containers a name server that is on this machine alone."""
    said = machine.read("/etc/docker/daemon.json") or ""
    inner = re.search(r'"dns"\s*:\s*\[\s*("127\.[\d.]+"[\s,]*)+\]', said)
    if inner is None:
        return None
    server = inner.group(1).partition(",")[0].strip().strip('"')
    return warn(
        "network",
        f"daemon.json gives containers the name server {server}, this machine's own",
        "nobody answers there in a container: builds and downloads find no names",
        "take dns out of /etc/docker/daemon.json, or name one of the network's (resolvectl"
        " dns); sudo systemctl restart docker",
    )


def _of_another_machine(machine: Machine) -> Finding | None:
    """A file that tells NCCL how more GPUs are linked than there are."""
    _, gpus = nvidia.ask(machine)
    for variable in ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE"):
        file = nccl.told(machine, variable)
        # Of Azure's own images, whose guests are Hyper-V's.
        own = file.startswith("/opt/microsoft/") and not machine.names("/opt/microsoft")
        if gpus and file and not machine.exists(file) and not own:
            graph = variable == "NCCL_GRAPH_FILE"
            return (fail if graph else warn)(
                "network",
                f"{variable} names {file}, which is not there",
                "NCCL does not start: Could not open XML graph file"
                if graph
                else "NCCL goes on with what it sees itself: in a virtual machine it may be slower",
                f"{nccl.undo(machine, variable)}; or put that file there",
            )
        # Of a TOPO_FILE NCCL takes what is here.
        text = machine.read(file) or "" if variable == "NCCL_GRAPH_FILE" and file else ""
        numbers = re.findall(r'<gpu dev="(\d{1,3})"', text)
        count = max(map(int, numbers), default=-1) + 1
        if gpus and count > len(gpus) and "CUDA_VISIBLE_DEVICES" not in machine.environ:
            return fail(
                "network",
                f"{variable}={file} is of a machine with {count} GPUs, and here are {len(gpus)}",
                "NCCL does not start (XML Import Channel: dev … not found)",
                f"{nccl.undo(machine, variable)}   # NCCL looks for itself then",
            )
    return None


def _of_another_network(machine: Machine) -> Finding | None:
    """A network of NCCL's that is not here, or a cloud's plugin that lacks its settings.

    https://github.com/NVIDIA/nccl/issues/958
    """
    wanted = nccl.told(machine, "NCCL_NET")
    ports = machine.names(nccl.FABRIC)
    several = len(visible.seen(machine)) > 1 or fleet.several(machine.environ)
    named = wanted.lower() in ("ib", "gib", "aws libfabric", "ofi")
    # Slingshot has no ports there.
    libfabric = wanted.lower() in ("aws libfabric", "ofi")
    slingshot = machine.names("/sys/class/cxi") or "cxi_" in (machine.read("/proc/modules") or "")
    if several and named and not ports and not (libfabric and slingshot):
        return fail(
            "network",
            f"NCCL_NET={wanted}, and there is no such network here",
            "NCCL does not start, on one machine either (No device found)",
            f"{nccl.undo(machine, 'NCCL_NET')}; or NCCL_NET=Socket",
        )
    paths = machine.environ.get("LD_LIBRARY_PATH", "")
    set_up = nccl.told(machine, "NCCL_TUNER_CONFIG_PATH")
    off = nccl.told(machine, "NCCL_TUNER_PLUGIN") == "none"
    if "/usr/local/gib/" in f"{paths}/" and not set_up and not off:
        return warn(
            "network",
            "Google's gIB is in LD_LIBRARY_PATH, without NCCL_TUNER_CONFIG_PATH",
            "its plugin ends NCCL as it starts, on one machine either",
            "source its set_nccl_env.sh; or NCCL_TUNER_PLUGIN=none NCCL_NET_PLUGIN=none",
        )
    return None
