"""The arithmetic of lanes: which numbers of them cut a batch, and who can share them."""

from __future__ import annotations

import math

from host.errors import UsageError


def cutting(batch: int, *, power_of_two: bool) -> list[int]:
    """The numbers of lanes that cut a batch evenly, ascending."""
    counts = _divisors(batch)
    return [n for n in counts if n & (n - 1) == 0] if power_of_two else counts


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def default(batch: int) -> int:
    """The number of lanes where none is named: up to 8, of 16 samples or more each; else 1.

    It follows from the batch alone: another machine must not mean other bits. Batch norm sees a
    lane at a time, which with fewer samples would be too rough a look.
    """
    return next((n for n in (8, 4, 2) if batch % n == 0 and batch // n >= 16), 1)


def sharing(lanes: int) -> list[int]:
    """The numbers of processes that can share so many lanes evenly, ascending."""
    return _divisors(lanes)


def share(lanes: int, rank: int, world: int, *, batch: int, lockstep: bool) -> range:
    """The lanes of process `rank` of `world`.

    Args:
        batch: samples in all lanes.
        lockstep: whether the number of lanes must be a power of two.

    Raises:
        UsageError: the processes cannot share the lanes evenly.
    """
    if lanes % world:
        fit = [n for n in cutting(batch, power_of_two=lockstep) if n % world == 0]
        other = (
            f", or --lanes {fit[0]}: other bits, and batch norm sees {batch // fit[0]} samples at a"
            f" time instead of {batch // lanes}"
            if fit
            else ""
        )
        raise UsageError(
            f"{world} processes cannot share {lanes} lane{'s' * (lanes != 1)} evenly",
            f"use {' or '.join(map(str, sharing(lanes)))} process{'es' * (lanes > 1)}{other}",
        )
    each = lanes // world
    return range(rank * each, (rank + 1) * each)
