"""A switch between machines that takes its time: each frame leaves it `delay` seconds later.

    python tests/nodes/relay.py NAMESPACE COUNT DELAY

Each namespace gets a TAP device `eth0`; this process passes frames between them. (The kernel's own
way, netem, is not in every kernel.) It prints a line once the cables are there.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

_TUNSETIFF, _TAP, _NO_INFO = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST = 65536


def cable(namespace: str) -> int:
    """A new `eth0` in a namespace; what comes out of it can be read here."""
    libc = ctypes.CDLL(None, use_errno=True)
    places = Path("/proc/self/ns/net"), Path("/run/netns") / namespace
    with places[0].open() as here, places[1].open() as there:
        assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP | _NO_INFO))
        finally:
            assert libc.setns(here.fileno(), _CLONE_NEWNET) == 0
    return device


def relay(cables: list[int], delay: float) -> None:
    """Pass frames on, until this process is ended."""
    places: dict[bytes, int] = {}  # which cable leads to which address
    waiting: deque[tuple[float, bytes, int]] = deque()
    poll = select.poll()
    for number in cables:
        poll.register(number, select.POLLIN)
    while True:
        due = 1000 * (waiting[0][0] - time.monotonic()) if waiting else 1000
        for number, _ in poll.poll(max(0, due)):
            with suppress(OSError):  # nothing more is there, or the cable is gone
                while True:
                    frame = os.read(number, _LARGEST)
                    places[frame[6:12]] = number
                    waiting.append((time.monotonic() + delay, frame, number))
        while waiting and waiting[0][0] <= time.monotonic():
            _, frame, source = waiting.popleft()
            target = places.get(frame[:6])
            for number in [target] if target is not None else cables:
                if number != source:
                    with suppress(OSError):  # it is down: the frame is lost, as on a cable
                        os.write(number, frame)


if __name__ == "__main__":
    name, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    ends = [cable(f"{name}-{each}") for each in range(count)]
    print("ready", flush=True)
    relay(ends, pause)
