"""The arithmetic of lanes: which numbers of them cut a batch, and who can share them."""

from __future__ import annotations

from host.errors import UsageError


def cutting(batch: int, *, power_of_two: bool) -> list[int]:
    """The numbers of lanes that cut a batch evenly, ascending."""
    counts = [n for n in range(1, batch + 1) if batch % n == 0]
    return [n for n in counts if n & (n - 1) == 0] if power_of_two else counts


def sharing(lanes: int) -> list[int]:
    """The numbers of processes that can share so many lanes evenly, ascending."""
    return [count for count in range(1, lanes + 1) if lanes % count == 0]


def share(lanes: int, rank: int, world: int, *, lockstep: bool) -> range:
    """The lanes of process `rank` of `world`.

    Raises:
        UsageError: the processes cannot share the lanes evenly.
    """
    if lanes % world:
        other = "" if lockstep else f", or lanes: {world}"
        raise UsageError(
            f"{world} processes cannot share {lanes} lanes evenly",
            f"use {' or '.join(map(str, sharing(lanes)))} processes{other}",
        )
    each = lanes // world
    return range(rank * each, (rank + 1) * each)
