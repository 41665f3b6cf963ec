"""The kernel's tables of connections and of neighbours, where they were full."""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host.machine import Machine
from host.text import whole

_CONNECTIONS = re.compile(r"nf_conntrack: (?:nf_conntrack: )?table full, dropping packet")
_NEIGHBOURS = re.compile(r"neighbou?r(?:ing)?: ?(\w*):? neighbou?r table overflow", re.IGNORECASE)
_FILTER = "/proc/sys/net/netfilter"
_MOST, _MANY = 1 << 20, 1 << 14  # entries that are enough for most


def full(machine: Machine, said: list[str]) -> Finding | None:
    """One of them was full, and has not been made larger since.

    https://docs.kernel.org/networking/ip-sysctl.html
    """
    return _connections(machine, said) or _neighbours(machine, said)


def _connections(machine: Machine, said: list[str]) -> Finding | None:
    rows = [row for row in said if _CONNECTIONS.search(row)]
    most, used = (
        whole(machine.read(f"{_FILTER}/nf_conntrack_{name}")) for name in ("max", "count")
    )
    raised = most is not None and used is not None and used < 0.5 * most
    if not rows or raised:
        return None
    return warn(
        "kernel log",
        "the kernel's table of connections is full: it drops packets",
        "downloads, and machines that train together, hang or lose each other",
        f"sudo sysctl net.netfilter.nf_conntrack_max={max(_MOST, 4 * (most or 0))}, and the same in"
        " /etc/sysctl.d",
    )


def _neighbours(machine: Machine, said: list[str]) -> Finding | None:
    rows = [told for told in map(_NEIGHBOURS.search, said) if told]
    if not rows:
        return None
    table = rows[-1].group(1) or "arp_cache"
    names = f"net.{'ipv6' if table == 'ndisc_cache' else 'ipv4'}.neigh.default.gc_thresh"
    most = whole(machine.read(f"/proc/sys/{names.replace('.', '/')}3"))
    if (most or 0) >= _MANY:
        return None
    return warn(
        "kernel log",
        f"the kernel's table of neighbours is full ({table})",
        "machines of this network are not found: No route to host, or they hang",
        f"sudo sysctl {names}3={_MANY}, gc_thresh2 to {_MANY // 2} and gc_thresh1 to"
        f" {_MANY // 4} likewise, and the same in /etc/sysctl.d",
    )
