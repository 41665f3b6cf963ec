"""The lanes' tree where one process has all of a step's leaves, or all that it is to add."""

from collections.abc import Sequence

import torch
from torch import Tensor

from train.lanes.joining import Node, above, is_right


class Counter:
    """A binary counter of partial sums: of leaves that come in order, neighbours are added, then
    neighbouring pairs, and so on.

    Args:
        first: the number of the first leaf.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = self._next = first
        self._partial: list[tuple[Node, list[Tensor]]] = []

    def add(self, leaf: list[Tensor]) -> None:
        """Put a leaf on the tree, which is written to from now on."""
        node: Node = 0, self._next
        self._next += 1
        while self._partial and is_right(node) and self._partial[-1][0] == (node[0], node[1] - 1):
            earlier = self._partial.pop()[1]
            if leaf:  # a stage may have nothing to train
                torch._foreach_add_(earlier, leaf)
            leaf, node = earlier, above(node)
        self._partial.append((node, leaf))

    def sums(self) -> list[list[Tensor]]:
        """The sums of the largest whole subtrees, as `joining.subtrees` has them; begin anew."""
        found = [sums for _, sums in self._partial]
        self._partial, self._next = [], self._first
        return found

    def total(self) -> list[Tensor]:
        """The sum of all leaves, a power of two, and begin anew."""
        [sums] = self.sums()
        return sums


def tree(leaves: Sequence[Tensor]) -> Tensor:
    """The sum of neighbours, then of neighbouring pairs, and so on; of a power of two."""
    sums = list(leaves)
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]
