"""A container in the foreground: what is sent to the command reaches the trainer, which may save.

`docker compose run` that is asked to end (by a scheduler, systemd, a closing terminal) leaves its
container running; Ctrl-C on a terminal it hands through. So the command is watched from here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from host.text import show_cursor

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def run(command: list[str], container: str) -> int:
    """Run a `docker compose run --name CONTAINER …` and return the container's exit code."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        # A closed terminal is a request to stop like others.
        asked.append(signal.SIGTERM if number == signal.SIGHUP else number)

    for each in _SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(each, ask)
    # On a terminal Compose needs ours. Elsewhere Ctrl-C must not reach it: it would walk away.
    with subprocess.Popen(command, start_new_session=not terminal()) as child:
        while (code := _wait(child)) is None:
            if asked and _send(container, asked[0]):
                del asked[0]
    if _running(container):  # Compose is gone, and the container is not
        for number in asked:
            _send(container, number)
        print(f"waiting for the container {container} to end", file=sys.stderr)
        code = int(_docker("wait", container).stdout.strip() or code)
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        show_cursor()
        if "fit" in command:
            print(f"error: {container} was killed → add --resume to go on", file=sys.stderr)
    return code if code >= 0 else 128 - code


def terminal() -> bool:
    """Whether a person sits in front of this command; not of one in the background."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.tcgetpgrp(0) == os.getpgrp()


def name(service: str) -> str:
    """A name for a container of a service that no other has."""
    return f"lockstep-{service}-{os.getpid()}-{os.urandom(2).hex()}"


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return None


def _send(container: str, number: int) -> bool:
    return _docker("kill", f"--signal={signal.Signals(number).name}", container).returncode == 0


def _running(container: str) -> bool:
    done = _docker("inspect", "--format", "{{.State.Running}}", container)
    return done.stdout.strip() == "true"


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=False, start_new_session=True
    )
