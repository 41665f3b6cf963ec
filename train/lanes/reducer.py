"""What sums over lanes: gradients, batch-norm statistics and what the lanes report."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from torch import Tensor

from host.errors import UsageError
from host.lanes import MEASURED, share
from train.config import Config
from train.lanes.exchange import BUCKET
from train.lanes.joining import subtrees


class Reducer(Protocol):
    """Sums over all lanes of a step, whichever process ran them.

    Attributes:
        scale: factor to give each lane's loss, so that gradients come out as sums.
        exchanged: bytes of each sum over processes, in their order; empty where DDP sums.
    """

    scale: float
    exchanged: list[int]

    def lane(self, *, sync: bool) -> AbstractContextManager[Any]:
        """Around one lane's passes; `sync` on the last lane of a full batch."""

    def add(self, share: float, report: Tensor) -> None:
        """After a lane: its share of the batch, and a float32 vector to sum."""

    def total(self) -> Tensor:
        """After the last lane: gradients hold their sums; returns the sum of the reports."""

    def undo(self) -> bool:
        """Have the model as it was before a step that could not be finished; whether it is so."""

    def close(self) -> None:
        """Give back what it holds; a training has no need to."""


def gradient_copies(config: Config, world: int = 1) -> int:
    """Copies of all gradients that a process holds at most, besides what is exchanged."""
    if not config.lockstep:
        return 1
    # Two neighbours are one copy; then sums of 2, 4, … lanes wait in the binary counter.
    shares = _shares(config, world)
    return max(len(subtrees(range(mine.start, lane + 1))) for mine in shares for lane in mine)


def apart_copies(config: Config, world: int) -> int:
    """The same where a lane's gradients are apart from its neighbour's until they are added."""
    shares = _shares(config, world)
    return max(1 + len(subtrees(range(mine.start, lane))) for mine in shares for lane in mine)


def waiting(rounds: int) -> int:
    """Sums that wait at most in a binary counter of so many: of two neighbours, of four, …"""
    return max(len(subtrees(range(last + 1))) for last in range(rounds))


def exchanged_copies(config: Config, world: int) -> int:
    """Copies of all gradients that a process holds for what is exchanged, but for a bucket that
    arrives; or DDP's buckets.
    """
    if world == 1:
        return 0
    if not config.lockstep:
        return 2
    return max(len(subtrees(mine)) for mine in _shares(config, world))


def arriving(config: Config, world: int, sizes: Sequence[int]) -> int:
    """Bytes of the largest bucket, which is what arrives at once.

    Args:
        sizes: bytes of each tensor.
    """
    if world == 1 or not config.lockstep:
        return 0
    return min(sum(sizes), max([BUCKET, *sizes]))


def _shares(config: Config, world: int) -> list[range]:
    size, level, asked = config.batch_size, config.reproducibility, os.environ.get("SHARES")
    if asked == MEASURED:  # it may be any of them
        most = config.lanes - world + 1
        starts = range(config.lanes)
        return [range(a, b) for a in starts for b in range(a + 1, min(a + most, config.lanes) + 1)]
    with suppress(UsageError):
        return share(config.lanes, world, batch=size, level=level, asked=asked)
    processes = min(world, config.lanes)  # more are refused elsewhere
    return share(config.lanes, processes, batch=config.batch_size, level="lockstep")
