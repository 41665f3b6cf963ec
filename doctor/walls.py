"""Whether a firewall keeps the other machines of a training out."""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host import fleet, limits
from host.machine import Machine

_OWN = ("ufw", "firewalld")
# Services that load rules from a file, as images of clouds have them; the files.
_OF_FILES = {
    "netfilter-persistent": ("/etc/iptables/rules.v4",),
    "iptables": ("/etc/sysconfig/iptables", "/etc/iptables/iptables.rules"),
    "nftables": ("/etc/nftables.conf", "/etc/sysconfig/nftables.conf"),
}
_NARROW = re.compile(
    r"icmp|pkt-?type|--(?:ct)?state (?!\S*NEW)|(?<!\S)-p (?:udp|esp|ah|igmp|vrrp)\b"
)
_REMARK = re.compile(r"(?:-m comment )?--comment (?:\"[^\"]*\"|\S+)|\bcomment \"[^\"]*\"")
_DEPTH = 4  # of chains that lead to each other
_MOST = 20_000  # ports
_OPEN_UP = {
    "ufw": "sudo ufw allow from NETWORK/24",
    "firewalld": "sudo firewall-cmd --permanent --zone=trusted --add-source=NETWORK/24 && sudo"
    " firewall-cmd --reload",
    "netfilter-persistent": "sudo iptables -I INPUT 1 -s NETWORK/24 -j ACCEPT && sudo"
    " netfilter-persistent save",
    "iptables": "sudo iptables -I INPUT 1 -s NETWORK/24 -j ACCEPT && sudo service iptables save",
    "nftables": "ip saddr NETWORK/24 accept into its chain input; sudo systemctl reload nftables",
}


def unread(machine: Machine) -> str:
    """A firewall that is on, and whose rules this user may not read, as a note."""
    on = _running(machine) if fleet.several(machine.environ) else None
    unread = on is not None and _lets_in(machine, on) is None
    return f"; a firewall is on ({on}): it has to let the other machines in" if unread else ""


def shut(machine: Machine) -> Finding | None:
    """A firewall is on that lets no network in, and NCCL's ports are any."""
    on = _running(machine)
    if on is None or _lets_in(machine, on) is not False:
        return None
    return warn(
        "network",
        f"a firewall is on ({on}), and lets no network in",
        "NCCL and gloo connect by ports of any number: No route to host, or they hang",
        f"{_OPEN_UP[on]}   # the other machines' network, on each machine",
    )


def _running(machine: Machine) -> str | None:
    """The firewall whose service runs here."""
    if limits.in_container(machine.root):
        return None
    states = {name: machine.run("systemctl", "is-active", name).out.strip() for name in _OWN}
    own = next((name for name, state in states.items() if state == "active"), None)
    if own is not None and (own != "ufw" or _lets_in(machine, own) is not True):
        return own  # ufw's service runs all the same where it is off
    for name, files in _OF_FILES.items():
        here = any(map(machine.exists, files))
        if here and machine.run("systemctl", "is-active", name).out.strip() == "active":
            return name
    return own


def _lets_in(machine: Machine, firewall: str) -> bool | None:
    """Whether it is switched off, lets everything in, or some network; None: not known, since only
    root may read that.
    """
    if firewall == "ufw":
        return _by_ufw(machine)
    if firewall == "firewalld":
        return _by_zones(machine)
    rules = next((text for text in map(machine.read, _OF_FILES[firewall]) if text), None)
    if rules is None or re.search(r"(?m)^\s*include\b", rules):
        return None
    if firewall == "nftables":
        return _by_chains(rules)
    closed = re.search(r"(?m)^:INPUT DROP|^-A INPUT -j (?:REJECT|DROP)", rules)
    return closed is None or _admits(rules, "INPUT")


def _by_ufw(machine: Machine) -> bool | None:
    """What ufw lets in."""
    off = "ENABLED=yes" not in (machine.read("/etc/ufw/ufw.conf") or "")
    usual = machine.read("/etc/default/ufw") or ""
    if off or 'DEFAULT_INPUT_POLICY="ACCEPT"' in usual:
        return True
    rules = machine.read("/etc/ufw/user.rules")
    status = machine.run("ufw", "status").out if rules is None else ""  # root's to ask
    if "Status: active" in status:
        rows = re.findall(
            r"(?m)^(\S+)(?: on \S+)?(?: \(v6\))? +(?:ALLOW|LIMIT)\b(?! OUT| FWD)", status
        )
        wide = [to for to in rows if any(map(_is_wide, to.split(",")))]
        return bool(wide) or any(re.match(r"Anywhere|\d+\.[\d./]+$", to) for to in rows)
    before = machine.read("/etc/ufw/before.rules") or ""
    if _admits(before, "ufw-before-input"):
        return True
    return None if rules is None else _admits(rules, "ufw-user-input")


def _admits(rules: str, chain: str) -> bool:
    """Whether a rule of iptables lets in more than single ports, from elsewhere."""
    # A chain may lead on to another one.
    wide = [row for row in rules.splitlines() if not _is_narrow(row) and "-i lo" not in row]
    leads = re.findall(
        r"(?m)^-A ([\w-]+) (?:.* )?-[jg] (?!(?:ACCEPT|DROP|REJECT|LOG)\b)([\w-]+)",
        "\n".join(wide),
    )
    led = {chain}
    for _ in range(_DEPTH):
        led |= {to for of, to in leads if of in led}
    rows = [_REMARK.sub("", row) for row in rules.splitlines()]
    return any(
        row.startswith(tuple(f"-A {each} " for each in led))
        and re.search(r"-j ACCEPT\b", row) is not None
        and "-i lo " not in row
        and not _is_narrow(row)
        for row in rows
    )


def _is_wide(ports: str) -> bool:
    """Whether it is a range of most ports: 1024:65535/tcp."""
    span = re.match(r"(\d{1,5})[:-](\d{1,5})\b", ports)
    return span is not None and int(span.group(2)) - int(span.group(1)) > _MOST


def _is_narrow(row: str) -> bool:
    """Whether a rule is of some ports alone, or of what trains no machine."""
    ports = re.search(r"\bdports? (\{[^}]*\}|\S+)", row)
    named = re.findall(r"\d+(?:[:-]\d+)?", ports.group(1)) if ports else []
    return _NARROW.search(row) is not None or (ports is not None and not any(map(_is_wide, named)))


def _is_of_others(row: str) -> bool:
    """Whether a rule of nftables lets in what comes from other machines."""
    face = re.search(r"\biif(?:name)? (!= )?(\{[^}]*\}|\S+)", row)
    faces = re.findall(r"[\w.@-]+", face.group(2)) if face else []
    # All but one, whichever: another one is left.
    other = face is not None and (face.group(1) or any(name != "lo" for name in faces))
    new = re.search(r"\bct state (?!\S*new)", row) is None
    every = new and re.search(r"\b(?:l4proto|ip protocol) (?:\{[^}]*)?\btcp\b", row)
    named = re.search(r"\b(?:ip6? saddr|dport) ", row)
    return bool(named or other or every) and re.search(r"\baccept\b", row) is not None


def _by_chains(rules: str) -> bool:
    """Whether nftables' chains of what comes in leave it open, or let some network in."""
    rules = re.sub(r"(?ms)^table ip6 \S+ \{.*?^\}", "", rules)  # IPv4 may be open
    # What a set has may stand on lines of its own.
    sets = r"(?:saddr|dport|iif(?:name)?|vmap|type|state|protocol) \{[^{}]*\}"
    rules = re.sub(sets, lambda found: found.group().replace("\n", " "), rules)
    rules = re.sub(r"(?m)^(.*?)\bvmap \{([^{}]*)\}.*$", _apart, rules)
    named = re.findall(r"(?ms)^\s*chain ([\w-]+) \{(.*?)^\s*\}", rules)
    chains = [text for _, text in named if "hook input" in text]
    rows = [row for chain in chains for row in chain.splitlines() if not _is_narrow(row)]
    rows = [row for row in rows if not re.search(r"\biif(?:name)? \"?lo\b", row)]
    led = re.findall(r"\b(?:jump|goto) ([\w-]+)", "\n".join(rows))
    open_in = [*chains, *(text for name, text in named if name in led)]
    refuses = r"(?m)hook input [^}]*policy drop|^\s*(?:counter )?(?:drop|reject)\b"
    bare = any(re.search(r"(?m)^\s*(?:counter )?accept\b", t) for n, t in named if n in led)
    return (
        bare
        or not any(re.search(refuses, chain) for chain in chains)
        or any(
            _is_of_others(row) and not _is_narrow(_REMARK.sub("", row))
            for chain in open_in
            for row in chain.splitlines()
        )
    )


def _apart(table: re.Match[str]) -> str:
    """The entries of a verdict map, each as a rule of its own."""
    entries = (entry.partition(":") for entry in table.group(2).split(","))
    rows = (f"{table.group(1)}{key.strip()} {verdict.strip()}" for key, _, verdict in entries)
    return "\n".join(rows)


def _by_hand(machine: Machine) -> bool:
    """Whether a rule of iptables that firewalld was given lets some network in."""
    told = machine.read("/etc/firewalld/direct.xml") or ""
    rows = re.findall(
        r'<rule[^>]*chain="INPUT(?:_direct)?"[^>]*>([^<]*-j ACCEPT)'
        r"|<passthrough[^>]*>([^<]*\bINPUT(?:_direct)?\b[^<]*-j ACCEPT)",
        told,
    )
    return any(not _is_narrow(row) and "-i lo " not in row for row in map("".join, rows))


def _of_networks(zones: list[str]) -> str:
    """The zones that some network or interface is in."""
    return "".join(text for text in zones if "<source" in text or "<interface" in text)


def _by_zones(machine: Machine) -> bool | None:
    """What firewalld's zones let in."""
    told = machine.read("/etc/firewalld/firewalld.conf") or ""
    folder = "/etc/firewalld/zones"
    usual = re.search(r"(?m)^DefaultZone=([\w-]+)", told)
    zone = f"{usual.group(1) if usual else 'public'}.xml"
    own = machine.read(f"{folder}/{zone}") or machine.read(f"/usr/lib/firewalld/zones/{zone}") or ""
    # Fedora's for workstations lets in all ports from 1025 on.
    if any(map(_is_wide, re.findall(r'port="([\d-]+)"', own))):
        return True
    others = ("/etc/firewalld/policies", "/etc/NetworkManager/system-connections")
    texts = [
        machine.read(f"{place}/{name}") or "" for place in others for name in machine.names(place)
    ]
    to_host = re.compile('egress-zone name="(?:HOST|ANY)"')
    if any(
        ('target="ACCEPT"' in text and to_host.search(text)) or "zone=trusted" in text
        for text in texts
    ):
        return True
    zones = {name: machine.read(f"{folder}/{name}") for name in machine.names(folder)}
    if not told or None in zones.values():
        return None
    trusted = zones.get("trusted.xml") or ""
    texts = [text or "" for text in zones.values()]
    return (
        re.search("(?m)^DefaultZone=trusted", told) is not None
        or _by_hand(machine)
        or any(map(_is_wide, re.findall(r'port="([\d-]+)"', _of_networks(texts))))
        or "<source" in trusted
        or "<interface" in trusted
        or any('target="ACCEPT"' in text or "<accept" in text for text in texts)
    )
