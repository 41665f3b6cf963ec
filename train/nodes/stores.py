"""The store on the first machine, where all of them meet: opened there, reached by the others."""

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from host.errors import HostError, first_line
from host.nodes import Nodes
from train.nodes import addresses

EACH = 0.2  # seconds between looks
SAY = 10.0  # seconds between words of waiting
_ANSWER = 5.0  # seconds that an answer over the network may take
_NAMED = 45.0  # seconds until the name of a pod that has just started is known


class Answering:
    """A store whose every answer has a limit: of a machine that is off, TCP waits for minutes.

    Args:
        limit: seconds; after them a question raises RuntimeError, as where the store is gone.
    """

    def __init__(self, store: Any, limit: float) -> None:
        self.clone = store.clone
        self._store, self._limit, self._silent = store, limit, False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._asked, getattr(self._store, name))

    def _asked(self, question: Callable[..., Any], *words: Any) -> Any:
        answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put((question(*words), None))
            except Exception as error:  # whatever it is: it is raised again
                answers.put((None, error))

        threading.Thread(target=ask, daemon=True).start()
        try:  # who did not answer once is not waited for again
            answer, error = answers.get(timeout=0.0 if self._silent else self._limit)
        except Empty:
            self._silent = True
            raise RuntimeError(f"no answer in {self._limit:.0f} s") from None
        if error is not None:
            raise error
        return answer


def opened(nodes: Nodes) -> Any:
    """The store; on the first machine it stays for as long as this process.

    Raises:
        HostError: the address leads nowhere, or the port is another program's.
    """
    return _hosted(nodes) if nodes.rank == 0 else Answering(_joined(nodes), nodes.silence)


def _hosted(nodes: Nodes) -> Any:
    """The store, on this machine; it stays for as long as this process."""
    began, said = time.monotonic(), -SAY
    # A cluster tells the name of a machine some seconds after that has started, or started again.
    limit = min(_NAMED, nodes.wait) if addresses.is_name(nodes.address) else 0.0
    while (problem := _astray(nodes)) is not None:
        waited = time.monotonic() - began
        if waited > limit:
            break
        if waited - said >= SAY:
            said = waited
            say(f"waiting for {nodes.address} to lead here, {limit - waited:.0f} s: {problem}")
        time.sleep(EACH)
    if problem is not None:
        here = ", ".join(addresses.all_own()) or "none"
        raise HostError(
            f"MASTER_ADDR={nodes.address} does not lead to this machine, which is node 0:"
            f" {problem}",
            f"set one of this machine's on all nodes ({here}), or another NODE_RANK here",
        )
    more = f"{nodes.count - 1} more of {nodes.count} nodes"
    say(f"waiting for {more}, at {nodes.place}, {nodes.wait} s")
    return _store(nodes, is_master=True, limit=timedelta(seconds=_ANSWER))


def _astray(nodes: Nodes) -> str | None:
    """Why the address does not lead to this machine, for people; None where it does."""
    try:
        # Nobody is to find somebody listening before that is the store.
        return addresses.nameless(nodes.address) or addresses.led_here(
            nodes.address, nodes.port, _ANSWER
        )
    except OSError as error:
        raise HostError(
            f"port {nodes.port} cannot be used on node 0: {error.strerror}",
            "end what uses it, or say another on all nodes: MASTER_PORT=29501",
        ) from error


def _joined(nodes: Nodes) -> Any:
    """The store on node 0, once it is there."""
    began, said, wait = time.monotonic(), -SAY, nodes.wait
    while (problem := addresses.reached(nodes.address, nodes.port, _ANSWER)) is not None:
        waited = time.monotonic() - began
        if waited > wait:
            raise HostError(
                f"node {nodes.rank} has not reached node 0 at {nodes.place} in {wait} s: {problem}",
                f"start node 0, or mend MASTER_ADDR; from here: nc -vz {nodes.address}"
                f" {nodes.port}",
            )
        if waited - said >= SAY:
            said = waited
            say(f"waiting for node 0 at {nodes.place}, {wait - waited:.0f} s: {problem}")
        time.sleep(EACH)
    try:
        return _store(nodes, is_master=False, limit=timedelta(seconds=_ANSWER))
    except RuntimeError as error:
        raise HostError(
            f"what listens at {nodes.place} is not node 0 of a training: {first_line(error)}",
            "set MASTER_PORT to a free port, the same on all nodes",
        ) from error


def _store(nodes: Nodes, *, is_master: bool, limit: timedelta) -> Any:
    return TCPStore(
        nodes.address,
        nodes.port,
        is_master=is_master,
        timeout=limit,
        wait_for_workers=False,
        multi_tenant=True,  # torchrun's agent shares it
    )


def say(text: str) -> None:
    """A line of how the meeting goes."""
    print(text, file=sys.stderr, flush=True)
