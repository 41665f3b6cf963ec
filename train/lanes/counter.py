"""The lanes' tree where one process has all of a step's leaves, or all that it is to add."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Counter:
    """A binary counter of partial sums: of leaves that come in order, neighbours are added, then
    neighbouring pairs, and so on.
    """

    def __init__(self) -> None:
        self._partial: list[tuple[int, list[Tensor]]] = []  # heights falling

    def add(self, node: list[Tensor]) -> None:
        """Put a leaf on the tree, which is written to from now on."""
        height = 0
        while self._partial and self._partial[-1][0] == height:
            earlier = self._partial.pop()[1]
            if node:  # a stage may have nothing to train
                torch._foreach_add_(earlier, node)
            node = earlier
            height += 1
        self._partial.append((height, node))

    def total(self) -> list[Tensor]:
        """The sum of all leaves, a power of two, and begin anew."""
        [(_, node)] = self._partial
        self._partial = []
        return node


def tree(leaves: Sequence[Tensor]) -> Tensor:
    """The sum of neighbours, then of neighbouring pairs, and so on; of a power of two."""
    sums = list(leaves)
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]
