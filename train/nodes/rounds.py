"""torchrun's rendezvous with machines in the order of their numbers.

Its own orders them by their addresses, so that any machine might be the one that writes; and from
round to round it keeps the store that the trainers of the last round have filled.
"""

import os
import time
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from host.errors import HostError, LostPeers, Stopped
from train.nodes.stores import say
from train.nodes.watching import Watch
from train.process import outcome, standing

BACKEND = "lockstep"
_FAILURES = 5  # of a machine's own trainers, until it is left out
_ANSWER = 25.0  # seconds: for torchrun a machine is there until 15 s after its last word


class Rounds(RendezvousHandler):
    """torchrun's c10d rendezvous, asked for who is there and not for their order."""

    def __init__(self, inner: RendezvousHandler, watch: Watch) -> None:
        self._inner, self._watch = inner, watch
        nodes = watch.meeting.nodes
        self._rank, self._elastic = nodes.rank, nodes.least is not None
        self._address = watch.meeting.words[nodes.rank].address
        self._server: Any = None
        self._failures = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the machines of a round."""
        if self._elastic:
            self._check_last()
        self._watch.members = set()  # nobody is missed while a round forms
        numbers: list[int] | None = None
        while numbers is None:  # again where one has gone since
            info = self._inner.next_rendezvous()
            store, count = info.store, info.world_size
            numbers = self._numbers(info)
        if 0 not in numbers:  # a clock that is off, or node 0 was stopped for a while
            raise HostError(
                f"node 0 is not among the nodes that torchrun finds here: {numbers}",
                "see that it runs, and that the clocks agree; then start this node again",
            )
        rank = numbers.index(self._rank)
        self._watch.members = {*numbers}
        if self._elastic and rank == 0:
            say(f"round of nodes {', '.join(map(str, numbers))}")
        port = 0
        if rank == 0:  # a store for the trainers of this round alone
            self._server = TCPStore(
                self._address, 0, is_master=True, wait_for_workers=False, multi_tenant=True
            )
            port = self._server.port
        own = PrefixStore("lockstep/agents", store)
        place = RendezvousStoreInfo.build(rank, own, self._address, port)
        return RendezvousInfo(own, rank, count, place)

    def _check_last(self) -> None:
        """See how the last round ended: whether another one is of use.

        Raises:
            LockstepError: it would end in the same way, or was asked to.
        """
        error = outcome.told().error
        if self._watch.lost is not None:
            raise self._watch.lost
        if outcome.asked():
            if isinstance(error, Stopped):
                raise error
            raise Stopped(
                "a signal came between two rounds; the last checkpoint is whole",
                "start this node again with the same command",
            )
        if error is not None and not isinstance(error, (LostPeers, Stopped)):
            self._failures += 1
            if not isinstance(error, HostError) or self._failures > _FAILURES:
                self._watch.told(error)
                raise error
        standing.clear()
        outcome.again()  # what ended the last round is no longer how it ends

    def _numbers(self, info: RendezvousInfo) -> list[int] | None:
        """The machines of a round by their numbers; None where one does not say its own."""
        info.store.set(f"lockstep/number/{info.rank}", str(self._rank))
        keys = [f"lockstep/number/{each}" for each in range(info.world_size)]
        deadline = time.monotonic() + _ANSWER
        while not info.store.check(keys):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return sorted(int(info.store.get(key)) for key in keys)

    @property
    def use_agent_store(self) -> bool:
        """The trainers find the store of `next_rendezvous` by MASTER_ADDR and MASTER_PORT."""
        return True

    def get_backend(self) -> str:
        """Its name."""
        return BACKEND

    def get_run_id(self) -> str:
        """As the inner one."""
        return self._inner.get_run_id()

    def is_closed(self) -> bool:
        """As the inner one."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """As the inner one."""
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        """As the inner one."""
        return self._inner.num_nodes_waiting()

    def shutdown(self) -> bool:
        """As the inner one; where machines may go, this one's end is not the end of all."""
        return True if self._elastic else self._inner.shutdown()


def register(watch: Watch) -> None:
    """Have torchrun find it under its name, for the machine that watches."""
    # Else the inner one shares a store, which who comes in a later round waits for in vain.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

    def create(parameters: RendezvousParameters) -> Rounds:
        backend, store = create_backend(parameters)
        return Rounds(create_handler(store, backend, parameters), watch)

    rendezvous_handler_registry.register(BACKEND, create)
