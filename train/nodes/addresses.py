"""This machine's addresses, and whether another one's can be reached."""

import ipaddress
import socket

import psutil

from host.errors import HostError


def own(address: str, port: int) -> str:
    """The address under which this machine talks to `address`; nothing is sent.

    Where that is this machine's own name, /etc/hosts may call it 127.0.1.1, as Debian's does: which
    nobody else reaches.

    Raises:
        HostError: it has several others, and none is the one.
    """
    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        found: str = probe.getsockname()[0]
    if not _inner(found) or _inner(address):
        return found
    others = [each for each in all_own() if ":" not in each]
    if len(others) != 1:
        raise HostError(
            f"MASTER_ADDR={address} is {found} on this machine, which no other one reaches",
            f"set its address on all nodes: {' or '.join(others) or 'it has none'}",
        )
    return others[0]


def _inner(address: str) -> bool:
    """Whether an address is a machine's own, within itself."""
    return address.startswith("127.") or address in ("::1", "localhost")


def interface(address: str) -> str | None:
    """The network interface that has `address`, by name."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.split("%")[0] == address for each in found):
            return str(name)
    return None


def all_own() -> list[str]:
    """This machine's addresses that others may know, IPv4 first."""
    found = [
        each.address.split("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for each in sorted(addresses, key=lambda each: each.family)
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [each for each in found if not each.startswith(("127.", "::1", "fe80"))]


def reached(address: str, port: int, limit: float) -> str | None:
    """None where somebody listens at `address`; else why not, for people."""
    try:
        with socket.create_connection((address, port), limit):
            return None
    except TimeoutError:
        return "no answer (another address, a machine that is off, or a firewall)"
    except ConnectionRefusedError:
        return "nobody listens there yet"
    except socket.gaierror as error:
        return _nameless(address, error)
    except OSError as error:
        return error.strerror or str(error)


def is_name(address: str) -> bool:
    """Whether an address is a machine's name, and no number."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return True
    return False


def nameless(address: str) -> str | None:
    """Why a name has no address, for people; None where it has one."""
    try:
        socket.getaddrinfo(address, None)
    except socket.gaierror as error:
        return _nameless(address, error)
    return None


def _nameless(address: str, error: socket.gaierror) -> str:
    return f"{address} has no address ({error.strerror})"


def led_here(address: str, port: int, limit: float) -> str | None:
    """None where `address` leads to this machine; else why not, for people.

    Raises:
        OSError: this machine cannot listen at the port.
    """
    with server("", port) as own:
        problem = reached(address, port, limit)
        own.settimeout(1)
        try:
            own.accept()[0].close()
        except TimeoutError:
            return problem or "another one listens there"
    return None


def server(address: str, port: int) -> socket.socket:
    """A socket that listens; at all addresses where `address` is empty, at a free port for 0."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = not address and socket.has_dualstack_ipv6()
    return socket.create_server(
        (address, port), family=socket.AF_INET6 if both else family, dualstack_ipv6=both
    )
