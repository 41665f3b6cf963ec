"""Waiting for other processes longer than a collective of theirs would: until they are gone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

_EACH = 0.2  # seconds between looks


@contextmanager
def all_done(name: str, rank: int, world: int) -> Iterator[None]:
    """Do the block on every process, and wait until each has left it, however that came about.

    One may take a minute for what another takes an hour for: to look at all data, where a machine's
    disk is slow or its cache is empty. Whoever dies ends the others, by their launcher.

    Args:
        name: of the block; each is waited for once.
    """
    try:
        yield
    finally:
        if world > 1:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"lockstep/{name}/{rank}", "done")
            while not store.check([f"lockstep/{name}/{each}" for each in range(world)]):
                time.sleep(_EACH)
