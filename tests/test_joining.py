"""Which sums go where: whatever the shares, the additions are those of the one balanced tree."""

import itertools
import random
from collections import deque

import pytest

from host.lanes import share, sharing
from train.lanes.joining import Plan, plan, subtrees


def tree(lanes: int) -> object:
    """The additions of the whole tree, as nested pairs of lane numbers."""
    nodes: list[object] = list(range(lanes))
    while len(nodes) > 1:
        nodes = [tuple(nodes[n : n + 2]) for n in range(0, len(nodes), 2)]
    return nodes[0]


def added(one: object, other: object) -> object:
    """Their sum: neither order is another."""
    return tuple(sorted((one, other), key=first))


def first(node: object) -> int:
    return node if isinstance(node, int) else first(node[0])


def run(shares: list[range]) -> list[object]:
    """What each process has in the end, where messages wait until somebody takes them.

    Whoever takes waits for who gives, as blocking networks do, and whoever exchanges does both.
    """
    plans = [plan(shares, rank) for rank in range(len(shares))]
    sums = [[tree_of(node) for node in made.subtrees] for made in plans]
    places = [0] * len(shares)
    boxes: dict[tuple[int, int], deque] = {}
    given = [False] * len(shares)
    moved = True
    while moved:
        moved = False
        for rank, made in enumerate(plans):
            if places[rank] == len(made.joins):
                continue
            join = made.joins[places[rank]]
            if join.peer is None:
                sums[rank][join.own] = added(sums[rank][join.own], sums[rank][join.other])
            else:
                if join.gives and not given[rank]:
                    boxes.setdefault((rank, join.peer), deque()).append(sums[rank][join.own])
                    given[rank] = moved = True
                if join.takes:
                    box = boxes.get((join.peer, rank))
                    if not box:
                        continue
                    sums[rank][join.own] = added(sums[rank][join.own], box.popleft())
            places[rank] += 1
            given[rank], moved = False, True
    assert places == [len(made.joins) for made in plans], "they wait for each other"
    assert not any(boxes.values()), "what was given was not taken"
    return ended(plans, sums)


def ended(plans: list[Plan], sums: list[list[object]]) -> list[object]:
    [source] = {made.source for made in plans}
    if source is not None:
        return [sums[source][plans[source].result]] * len(plans)
    return [have[made.result] for made, have in zip(plans, sums, strict=True)]


def tree_of(node: tuple[int, int]) -> object:
    height, number = node
    if not height:
        return number
    return tree_of((height - 1, 2 * number)), tree_of((height - 1, 2 * number + 1))


def cuts(lanes: int, processes: int):
    """All ways to share so many lanes."""
    for inner in itertools.combinations(range(1, lanes), processes - 1):
        ends = [0, *inner, lanes]
        yield [range(a, b) for a, b in itertools.pairwise(ends)]


def test_every_way_to_share_eight_lanes() -> None:
    every = [cut for processes in range(1, 9) for cut in cuts(8, processes)]
    assert len(every) == 128
    for shares in every:
        assert run(shares) == [tree(8)] * len(shares), shares


def test_many_ways_to_share_up_to_256() -> None:
    chance = random.Random(0)
    for _ in range(300):
        lanes = 2 ** chance.randint(4, 8)
        inner = sorted(chance.sample(range(1, lanes), chance.randint(1, 12)))
        shares = [range(a, b) for a, b in itertools.pairwise([0, *inner, lanes])]
        assert run(shares) == [tree(lanes)] * len(shares), shares


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_equal_shares_are_recursive_doubling(processes) -> None:
    """As many exchanges as the logarithm says, each with whose rank differs in one bit."""
    shares = share(16, processes, batch=128, level="lockstep")
    for rank in range(processes):
        made = plan(shares, rank)
        assert [join.peer for join in made.joins] == [
            rank ^ 2**bit for bit in range(processes.bit_length() - 1)
        ]
        assert all(join.gives and join.takes for join in made.joins)
        assert made.source is None
        assert len(made.subtrees) == 1


def test_a_range_is_cut_into_its_largest_subtrees() -> None:
    assert subtrees(range(8)) == [(3, 0)]
    assert subtrees(range(3, 8)) == [(0, 3), (2, 1)]
    assert subtrees(range(1, 7)) == [(0, 1), (1, 1), (1, 2), (0, 6)]
    for start, stop in itertools.combinations(range(33), 2):
        lanes = [
            lane
            for height, number in subtrees(range(start, stop))
            for lane in range(number << height, (number + 1) << height)
        ]
        assert lanes == list(range(start, stop))


def test_numbers_of_processes_that_are_worth_it() -> None:
    assert sharing(8, "lockstep") == [1, 2, 3, 4, 8]
    assert sharing(16, "lockstep") == [1, 2, 3, 4, 6, 8, 16]
    assert sharing(8, "deterministic") == [1, 2, 4, 8]
    for lanes, few in ((1, [1]), (2, [1, 2]), (4, [1, 2, 4])):
        assert sharing(lanes, "lockstep") == few
