"""Whether machines reach each other, and how fast: on free ports, as gloo and NCCL take them.

A firewall may let the one port through that the machines meet at, and no other; then the first
collective would hang.
"""

import os
import socket
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from host.errors import HostError
from train.nodes import addresses
from train.nodes.meeting import Meeting
from train.nodes.stores import say

_CONNECT = 5.0  # seconds
_SENDING, _TRIPS, _MOST = 0.3, 20, 2.0  # seconds of sending to measure by, and ways more
_PINGS = 5
_BLOCK = 1 << 18
_FEW = 8  # machines that all talk to all
_SLOW = 0.5  # of the others' rate: worth a word


@dataclass(frozen=True)
class Link:
    """From one machine to another.

    Attributes:
        problem: why it does not work; None where it does.
        rate: bytes a second.
        delay: seconds there and back.
    """

    source: int
    target: int
    problem: str | None
    rate: float = 0.0
    delay: float = 0.0


def measured(meeting: Meeting) -> list[Link]:
    """Each link that is used, tried and measured; all machines call this together.

    Raises:
        HostError: one machine does not reach another.
    """
    count, rank = meeting.nodes.count, meeting.nodes.rank
    token = os.urandom(8).hex()
    with _Listener(meeting.words[rank].address, token) as listener:
        # A token: what listens at a port may be another program by now.
        ports = meeting.gathered("port", [listener.port, token], 30)
        own = []
        for distance in _distances(count):
            target = (rank + distance) % count
            port, expected = ports[target]
            own.append(asdict(_tried(meeting, target, port, expected)))
            meeting.gathered(f"links at {distance}", True, 60)
        found = [Link(**link) for links in meeting.gathered("links", own, 60) for link in links]
    for link in found:
        if link.problem:
            raise HostError(
                f"{meeting.name(link.source)} does not reach {meeting.name(link.target)}, port"
                f" {ports[link.target][0]}: {link.problem}",
                "let the nodes reach each other on all TCP ports: gloo and NCCL take free ones, and"
                " not MASTER_PORT alone",
            )
    if rank == 0:
        say(_told(meeting, found))
    return found


def network(links: list[Link], machines: int) -> dict[str, float]:
    """The links in a few numbers, as `launcher.network` has them."""
    rate, delay = min(link.rate for link in links), max(link.delay for link in links)
    return {"machines": machines, "rate": rate, "delay": delay}


def _distances(count: int) -> list[int]:
    """To all others where they are few; else to those that the sums go to and come from."""
    if count <= _FEW:
        return list(range(1, count))
    return [1 << bit for bit in range((count - 1).bit_length())]


def _told(meeting: Meeting, links: list[Link]) -> str:
    """The links on a line: the slowest by name where it is much slower than others."""
    rates = [link.rate for link in links]
    slowest, usual = min(links, key=lambda link: link.rate), statistics.median(rates)
    delay = 1000 * max(link.delay for link in links)
    line = f"links: {_rate(usual)}, {delay:.1f} ms there and back"
    if slowest.rate < _SLOW * usual:
        way = f"{meeting.name(slowest.source)} to {meeting.name(slowest.target)}"
        line += f"; warning: {way} does {_rate(slowest.rate)}, and all wait for it"
    return line


def _rate(rate: float) -> str:
    bits = 8 * rate
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"


def _tried(meeting: Meeting, target: int, port: int, token: str) -> Link:
    source, address = meeting.nodes.rank, meeting.words[target].address
    try:
        with socket.create_connection((address, port), _CONNECT) as peer:
            peer.sendall(token.encode())
            delays = []
            for _ in range(_PINGS):
                began = time.monotonic()
                peer.sendall(b"p")
                if peer.recv(1) != b"p":
                    raise ConnectionResetError
                delays.append(time.monotonic() - began)
            rate = _sent(peer, _SENDING + min(_MOST, _TRIPS * min(delays)))
    except TimeoutError:
        return Link(source, target, "no answer")
    except OSError as error:
        return Link(source, target, error.strerror or "the connection broke")
    return Link(source, target, None, rate, min(delays))


def _sent(peer: socket.socket, seconds: float) -> float:
    """Send for so long; returns the bytes a second that arrive there towards the end."""
    block, began, sent = memoryview(bytes(_BLOCK)), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        sent += peer.send(block)
    peer.shutdown(socket.SHUT_WR)
    arrived, rate = (peer.makefile().readline() or "0 0").split()
    if int(arrived) != sent:
        raise ConnectionResetError
    return float(rate)


class _Listener:
    """Answers other machines' tries, in threads, for as long as the block lasts."""

    def __init__(self, address: str, token: str) -> None:
        self._socket = addresses.server(address, 0)
        self.port: int = self._socket.getsockname()[1]
        self._token = token.encode()

    def __enter__(self) -> "_Listener":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.settimeout(60)
            if peer.recv(16, socket.MSG_WAITALL) != self._token:
                return
            for _ in range(_PINGS):
                peer.sendall(peer.recv(1))
            arrived, block, course = 0, bytearray(_BLOCK), list[tuple[float, int]]()
            while got := peer.recv_into(block):
                arrived += got
                course.append((time.monotonic(), arrived))
            peer.sendall(f"{arrived} {_late_rate(course)}\n".encode())


def _late_rate(course: list[tuple[float, int]]) -> float:
    """Bytes a second in the second half of the time: TCP begins slowly where the way is long.

    Args:
        course: when how many bytes had arrived in all.
    """
    if not course:
        return 0.0
    (begun, first), (ended, last) = course[0], course[-1]
    middle = (begun + ended) / 2
    then, before = next((when, count) for when, count in course if when >= middle)
    if before == last:  # it stood still: all of the time counts
        then, before = begun, first
    return max(last - before, first) / max(ended - then, 1e-3)
