"""The arithmetic of lanes: which numbers of them cut a batch, and who can share them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from host.errors import UsageError

MEASURED = "auto"
"""What SHARES says where lanes are to be shared by measured speed."""


def cutting(batch: int, *, power_of_two: bool) -> list[int]:
    """The numbers of lanes that cut a batch evenly, ascending."""
    counts = _divisors(batch)
    return [n for n in counts if n & (n - 1) == 0] if power_of_two else counts


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


FEW = 8
"""Samples of a lane below which batch norm costs accuracy."""


def default(batch: int) -> int:
    """The number of lanes where none is named: up to 8, of 16 samples or more each; else 1.

    It follows from the batch alone: another machine must not mean other bits. Batch norm sees a
    lane at a time, which with fewer samples would be too rough a look.
    """
    return next((n for n in (8, 4, 2) if batch % n == 0 and batch // n >= 16), 1)


def sharing(lanes: int, level: str) -> list[int]:
    """The numbers of processes that so many lanes are worth sharing among, ascending.

    At lockstep one may run more of them than another: these are the numbers than which no smaller
    one is as fast, which is what the largest share decides.
    """
    if level == "lockstep":
        return sorted({-(-lanes // -(-lanes // world)) for world in range(1, lanes + 1)})
    return _divisors(lanes)


def can_share(lanes: int, world: int, level: str) -> bool:
    """Whether so many processes can share the lanes by themselves, without SHARES."""
    return world <= lanes and (level == "lockstep" or lanes % world == 0)


def share(
    lanes: int,
    world: int,
    *,
    batch: int,
    level: str,
    asked: str | None = None,
    sharded: bool = False,
) -> list[range]:
    """The lanes of each of `world` processes: neighbours, and as many for each as can be.

    Args:
        batch: samples in all lanes.
        level: of `reproducibility`.
        asked: what the variable SHARES says: how many lanes each process is to have, as in 5,3; or
            `auto`: as many for each at first.
        sharded: whether weights are, and each process is to have as many.

    Raises:
        UsageError: the processes cannot share the lanes so.
    """
    if asked == MEASURED:
        _check_measured("sharded" if sharded else level)
    elif asked and world <= lanes:
        return _asked(lanes, world, asked, "sharded" if sharded else level)
    even = level != "lockstep" or sharded
    if not can_share(lanes, world, "sharded" if sharded else level):
        fit = [n for n in cutting(batch, power_of_two=level == "lockstep") if n >= world]
        fit = [n for n in fit if n % world == 0] or ([] if even else fit)
        other = (
            f", or a new run with --lanes {fit[0]}: other bits, and batch norm sees"
            f" {batch // fit[0]} sample{'s' * (batch // fit[0] > 1)} at a time instead of"
            f" {batch // lanes}"
            if fit
            else ""
        )
        can = " or ".join(map(str, _divisors(lanes)))
        can = f"at most {lanes}" if not even and lanes > 1 else can
        raise UsageError(
            f"{world} processes cannot share {lanes} lane{'s' * (lanes != 1)}" + " evenly" * even,
            f"use {can} process{'es' * (lanes > 1)}{other}",
        )
    return ranges(_counts(lanes, world))


def said(shares: Sequence[range]) -> str:
    """How many lanes each process has, for people: 3+3+2."""
    return "+".join(str(len(share)) for share in shares)


def _check_measured(level: str) -> None:
    if level != "lockstep":
        what = "where weights are sharded" if level == "sharded" else f"at {level}"
        raise UsageError(
            f"SHARES={MEASURED}: {what} the processes keep the lanes that they begin with",
            "leave SHARES out, or use "
            + ("ACCELERATE= another" if level == "sharded" else "--reproducibility lockstep"),
        )


def _asked(lanes: int, world: int, asked: str, level: str) -> list[range]:
    counts = [int(word) if word.isdecimal() else 0 for word in asked.split(",")]
    if level == "sharded":
        raise UsageError(
            f"SHARES={asked}: where weights are sharded all processes have as many lanes",
            "leave SHARES out, or ACCELERATE=fsdp",
        )
    if level == "deterministic":  # a run goes on with the sums that it was begun with
        raise UsageError(
            f"SHARES={asked}: at {level} all processes have as many lanes",
            "leave SHARES out, or use --reproducibility lockstep or fast",
        )
    even = ",".join(str(len(share)) for share in ranges(_counts(lanes, max(1, min(world, lanes)))))
    if len(counts) != world or sum(counts) != lanes or min(counts) < 1:
        raise UsageError(
            f"SHARES={asked} does not share {lanes} lane{'s' * (lanes != 1)} among {world}"
            f" process{'es' * (world != 1)}",
            f"give each a number of them, such as SHARES={even}",
        )
    return ranges(counts)


def _counts(lanes: int, world: int) -> list[int]:
    each, more = divmod(lanes, world)
    return [each + (rank < more) for rank in range(world)]


def ranges(counts: Sequence[int]) -> list[range]:
    """The lanes of each process, from how many each has."""
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends)]
