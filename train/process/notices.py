"""Stops the training in good time where the cloud says that it takes this machine away."""

import os
import signal
import sys
import threading

from host import spot
from host.machine import Machine
from host.text import printable

_EACH = 5.0  # seconds between looks, as AWS asks for
_TRIES = 3


def watch(done: threading.Event) -> None:
    """On a cloud's machine, look in a thread until `done` is set.

    What is announced is said, and then asked for as by SIGTERM to this process.
    """
    name = spot.provider(Machine())
    if name is not None:
        threading.Thread(target=_look, args=(spot.Notices(name), done), daemon=True).start()


def _look(notices: spot.Notices, done: threading.Event) -> None:
    failed = 0
    while not done.wait(_EACH):
        try:
            found = notices.look()
        except OSError as error:
            failed += 1
            if failed == _TRIES:
                _say(
                    f"note: {notices.name}'s metadata service does not answer ({error}): no notice"
                    " that a spot machine is taken away will be seen; in a container, NETWORK=host"
                )
        else:
            failed = 0
            if found:
                _say(f"{notices.name} takes this machine away ({found}): saving")
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
