"""Ends the waits for processes that are gone: closes this one's connections, when it is told to.

gloo waits for a machine that is off until a limit of its own, and nothing in it ends a wait. Where
a connection is shut it raises at once, and the main thread can still save what it holds.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from train.process import standing

_EACH = 0.5  # seconds between looks


@contextmanager
def severed_when_told() -> Iterator[None]:
    """In the block, shut all connections once this machine's agent says that others are lost."""
    over = threading.Event()
    threading.Thread(target=_watch, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(over: threading.Event) -> None:
    while not over.wait(_EACH):
        if standing.others_lost():
            _shut()
            return


def _shut() -> None:
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_ESTABLISHED:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as own:
                own.shutdown(socket.SHUT_RDWR)
