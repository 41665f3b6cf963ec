"""Who sends which sums to whom, so that a step's lanes are added as one balanced tree over their
numbers, however many of them each process runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Node = tuple[int, int]
"""Height h and number n of a subtree: the lanes n·2^h … (n + 1)·2^h - 1."""

Held = dict[int, int]
"""The processes that have a subtree's sum, and as which of their own."""


def is_right(node: Node) -> bool:
    """Whether its neighbour in the tree stands before it."""
    return node[1] % 2 == 1


def above(node: Node) -> Node:
    """What it becomes part of, with its neighbour."""
    return node[0] + 1, node[1] // 2


def subtrees(lanes: range) -> list[Node]:
    """The largest whole subtrees of neighbouring lanes, in order: what is added without others."""
    found: list[Node] = []
    for lane in lanes:
        node = 0, lane
        while found and is_right(node) and found[-1] == (node[0], node[1] - 1):
            found.pop()
            node = above(node)
        found.append(node)
    return found


@dataclass(frozen=True)
class Join:
    """One addition, or one sum that is given away.

    Attributes:
        own: which of this process's subtrees it is about, by their order.
        other: the subtree that is added to it, where this process has that too.
        peer: the process it is exchanged with; None where there is no other.
        gives, takes: `own` is sent; what comes is added to it.
    """

    own: int
    other: int | None = None
    peer: int | None = None
    gives: bool = False
    takes: bool = False


@dataclass(frozen=True)
class Plan:
    """What one process does to have the sum over all lanes.

    Attributes:
        subtrees: what it adds by itself.
        joins: in their order; who exchanges is on both sides the other's peer.
        result: which of `subtrees` is the sum afterwards.
        source: the process that gives it to all; None where all have it.
    """

    subtrees: list[Node]
    joins: list[Join]
    result: int
    source: int | None


def plan(shares: Sequence[range], rank: int) -> Plan:
    """What process `rank` does, of processes that run the lanes `shares`, neighbours from 0 on.

    Where two halves of a subtree are held by equally many processes, these exchange them in pairs,
    and all of them have the whole: of equal shares that is recursive doubling. Where not, the first
    that has the right half gives it to the first that has the left one.
    """
    own = [subtrees(share) for share in shares]
    # Who has a subtree, and as which of its own.
    held: dict[Node, Held] = {}
    for process, nodes in enumerate(own):
        for slot, node in enumerate(nodes):
            held.setdefault(node, {})[process] = slot
    joins: list[Join] = []
    while len(held) > 1:
        low = min(height for height, _ in held)
        for node in sorted(n for n in held if n[0] == low and not is_right(n)):
            left, right = held.pop(node), held.pop((low, node[1] + 1), {})
            held[above(node)], mine = _joined(left, right, rank) if right else (left, [])
            joins += mine
    [holders] = held.values()
    source = min(holders) if len(holders) < len(shares) else None
    return Plan(own[rank], joins, holders.get(rank, 0), source)


def _joined(left: Held, right: Held, rank: int) -> tuple[Held, list[Join]]:
    """Who has two halves once they are added, and what `rank` does for it."""
    if both := [process for process in left if process in right]:
        local = [Join(left[rank], other=right[rank])] if rank in both else []
        return {process: left[process] for process in both}, local
    whole, mutual = left | right, len(left) == len(right)
    pairs = list(zip(left, right, strict=mutual))[: None if mutual else 1]
    joins = []
    for one, two in pairs:
        if rank == one:
            joins.append(Join(left[one], peer=two, takes=True, gives=mutual))
        if rank == two:
            joins.append(Join(right[two], peer=one, gives=True, takes=mutual))
    return (whole if mutual else {pairs[0][0]: left[pairs[0][0]]}), joins
