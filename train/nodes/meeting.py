"""Where machines meet before any of them trains: a store on the first of them.

torchrun's agents wait for each other in silence, and do not say who is missing. Here each machine
says its number and what it is about to start; who waits says for whom.
"""

import json
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, NoReturn

from host.errors import HostError, LockstepError, Stopped, UsageError, first_line, from_fields
from host.nodes import Nodes
from train.nodes import addresses, alike, stores
from train.nodes.stores import EACH, SAY, say

_FAREWELL = 10.0  # seconds in which the others hear from node 0 why it ended
_KEY = "lockstep/node"


@dataclass(frozen=True)
class Word:
    """What a machine says of itself.

    Attributes:
        host, address: its name, and the address at which the others reach it.
        count, least: how many machines it was told of, and how many are enough.
        processes: how many it starts.
        device, precision: of those.
        manifest: what a run's record would say of it, as far as it is known before trainers start.
    """

    host: str
    address: str
    count: int
    least: int | None
    processes: int
    device: str
    precision: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Meeting:
    """The machines of a training, all there.

    Attributes:
        store: what they tell each other over.
        words: what each said of itself, by its number; where some may come later, of those there.
    """

    nodes: Nodes
    store: Any
    words: dict[int, Word]

    def name(self, rank: int) -> str:
        """A machine, for people."""
        if rank not in self.words:
            key = f"{_KEY}/word/{rank}"
            if not self.store.check([key]):
                return f"node {rank}"
            self.words[rank] = Word(**json.loads(self.store.get(key)))
        return f"node {rank} ({self.words[rank].host}, {self.words[rank].address})"

    def gathered(self, what: str, value: Any, limit: float) -> list[Any]:
        """Each machine's `value` (of JSON), in their order, on all of them.

        Raises:
            HostError: one of them has not answered within `limit` seconds.
        """
        self.store.set(f"{_KEY}/{what}/{self.nodes.rank}", json.dumps(value))
        keys = [f"{_KEY}/{what}/{rank}" for rank in range(self.nodes.count)]
        deadline = time.monotonic() + limit
        while not self.store.check(keys):
            _raise_refused(self.store)
            if time.monotonic() > deadline:
                lost = next(r for r, key in enumerate(keys) if not self.store.check([key]))
                raise HostError(
                    f"{self.name(lost)} does not answer any more: for {limit:.0f} s it has not"
                    f" told its {what}",
                    "look there what became of it, and start all of them again",
                )
            time.sleep(EACH / 4)
        return [json.loads(self.store.get(key)) for key in keys]


@contextmanager
def met(nodes: Nodes, planned: Mapping[str, Any], manifest: dict[str, Any]) -> Iterator[Meeting]:
    """All machines, as soon as they are there; who leaves with an error tells the others.

    Args:
        planned: processes, device and precision, as `Word` has them.
        manifest: as `Word` has it.

    Raises:
        HostError: one does not come, or the address leads nowhere.
        UsageError: they were told different things.
    """
    store = stores.opened(nodes)
    # What would end this process at once is to end it here, with its word taken back.
    before = signal.signal(signal.SIGTERM, _asked)
    own = addresses.own(nodes.address, nodes.port)
    counts = (nodes.count, nodes.least)
    word = Word(socket.gethostname(), own, *counts, **planned, manifest=manifest)
    farewell, failed = _FAREWELL, False
    try:
        try:
            meeting = Meeting(nodes, store, _arrive(nodes, store, word))
            signal.signal(signal.SIGTERM, before)
            _check_words(meeting)
            yield meeting
        except SystemExit:
            # The others go on waiting: for this one again, or for another in its place.
            farewell = 0.0
            with suppress(RuntimeError):
                store.delete_key(f"{_KEY}/word/{nodes.rank}")
            raise
        except LockstepError as error:
            failed = True
            if nodes.least is not None:
                raise
            with suppress(RuntimeError):
                store.set(f"{_KEY}/refused", json.dumps(error.fields()))
            raise
        finally:
            _leave(nodes, store, farewell, failed=failed)
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError
        raise HostError(
            f"node 0 at {nodes.place} is gone: {first_line(error)}",
            "look there what became of it, and start all of them again",
        ) from error


def _asked(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(Stopped.code)


def _arrive(nodes: Nodes, store: Any, word: Word) -> dict[int, Word]:
    """Say who this is, and wait for the others, or for as many as are enough."""
    own = json.dumps(asdict(word))
    there = store.compare_set(f"{_KEY}/word/{nodes.rank}", "", own).decode()
    other = Word(**json.loads(there))
    if (other.host, other.address) == (word.host, word.address):  # this one, come again
        store.set(f"{_KEY}/word/{nodes.rank}", own)
    else:
        raise UsageError(
            f"two machines say that they are node {nodes.rank}: {other.host} ({other.address})"
            f" and {word.host} ({word.address})",
            f"number them from 0 to {nodes.count - 1}: NODE_RANK=",
        )
    store.delete_key(f"{_KEY}/left/{nodes.rank}")
    began, said, wait = time.monotonic(), 0.0, nodes.wait
    keys = [f"{_KEY}/word/{rank}" for rank in range(nodes.count)]
    while True:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        if "0" not in missing and nodes.count - len(missing) >= (nodes.least or nodes.count):
            break
        _raise_refused(store)
        who = f"node{'s' * (len(missing) > 1)} {', '.join(missing)} of {nodes.count}"
        waited = time.monotonic() - began
        if waited > wait:
            raise HostError(
                f"{who} {'have' if len(missing) > 1 else 'has'} not come to {nodes.place} in"
                f" {wait} s",
                f"start it there: make train NODES={nodes.count} NODE_RANK={missing[0]}"
                f" MASTER_ADDR={nodes.address} …; NODE_WAIT=1200 waits longer",
            )
        if waited - said >= SAY:
            said = waited
            say(f"waiting for {who}, {wait - waited:.0f} s more")
        time.sleep(EACH)
    there = {rank: key for rank, key in enumerate(keys) if str(rank) not in missing}
    return {rank: Word(**json.loads(store.get(key))) for rank, key in there.items()}


def _check_words(meeting: Meeting) -> None:
    """All machines must start the same on theirs."""
    first, here = meeting.words[0], meeting.name(0)
    # Where some may come later, each sees to itself: it must not end those that train.
    own = meeting.nodes.rank
    ranks = sorted(meeting.words) if meeting.nodes.least is None else [own]
    for rank, word in ((rank, meeting.words[rank]) for rank in ranks):
        for name, ours, theirs in (
            ("NODES", first.count, word.count),
            ("MIN of NODES", first.least, word.least),
            ("processes a node", first.processes, word.processes),
            ("device", first.device, word.device),
            ("PRECISION", first.precision, word.precision),
        ):
            if ours != theirs:
                raise UsageError(
                    f"{name}: {theirs} on {meeting.name(rank)}, and {ours} on {here}",
                    "give all nodes the same command, but for NODE_RANK",
                )
        who = f"{meeting.name(rank)} is not as {here}"
        alike.check(first.manifest, word.manifest, who)


def _raise_refused(store: Any) -> None:
    """Raise what another machine could not go on for, if one could not."""
    if store.check([f"{_KEY}/refused"]):
        raise from_fields(json.loads(store.get(f"{_KEY}/refused")))


def _leave(nodes: Nodes, store: Any, farewell: float, *, failed: bool) -> None:
    """Go, but node 0 last: the store goes with it."""
    with suppress(RuntimeError):
        store.set(f"{_KEY}/left/{nodes.rank}", "yes")
        if nodes.rank != 0:
            return
        # After an error for each number: two may have come as one, and the other must hear it too.
        ranks = [r for r in range(nodes.count) if failed or store.check([f"{_KEY}/word/{r}"])]
        keys = [f"{_KEY}/left/{rank}" for rank in ranks]
        deadline = time.monotonic() + farewell
        while not store.check(keys) and time.monotonic() < deadline:
            time.sleep(EACH)
