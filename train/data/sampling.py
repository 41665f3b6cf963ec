"""Which sample stands at each position of the stream, and its key: a pure function of both.

Shuffled, each epoch has each sample once. Balanced, an epoch is as long, and each class has the
same share of it: a class's samples come round and round, in another order each time. Repeated, a
batch has each sample several times, each time with another key, and so varied otherwise.
"""

from functools import lru_cache

import torch
from torch import Tensor

from train.config import Config
from train.lanes import order


class Sampling:
    """The stream of samples that a training reads.

    Args:
        labels: of the training split, int64 [N].
    """

    def __init__(self, config: Config, labels: Tensor) -> None:
        self._seed, self._size = config.seed, len(labels)
        self._batch, self._repeats = config.batch_size, config.augment.repeats
        self._members: list[Tensor] = []
        if config.data.balanced:
            counts = labels.unique(return_counts=True)[1].tolist()
            self._members = list(torch.split(torch.argsort(labels, stable=True), counts))

    def at(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Numbers and keys of the samples at positions start … stop-1; two int64 [stop - start]."""
        if self._repeats == 1:
            numbers, keys = order.samples(self._seed, self._size, start, stop)
            return self._balanced(numbers, start, stop), keys
        positions = torch.arange(start, stop)
        each = self._batch // self._repeats
        step, place = positions // self._batch, positions % self._batch
        # The first of each sample, then the second of each: neighbours are never the same one.
        once = step * each + place % each
        first, last = (int(once.min()), int(once.max()) + 1) if len(once) else (0, 0)
        numbers, keys = order.samples(self._seed, self._size, first, last)
        numbers = self._balanced(numbers, first, last)
        return numbers[once - first], order.again(keys[once - first], place // each)

    def _balanced(self, numbers: Tensor, start: int, stop: int) -> Tensor:
        """What stands there where classes are balanced: `numbers` are those of places then."""
        if not self._members or stop <= start:
            return numbers
        cut = order.pieces(self._size, start, stop)
        parts = torch.split(numbers, [part.stop - part.start for _, part in cut])
        tables = [_table(self, epoch)[part] for (epoch, _), part in zip(cut, parts, strict=True)]
        return torch.cat(tables)

    def table(self, epoch: int) -> Tensor:
        """The sample that each place of an epoch has, int64 [N]; places go from class to class."""
        out = torch.empty(self._size, dtype=torch.int64)
        count = len(self._members)
        for label, members in enumerate(self._members):
            size = len(members)
            places = len(range(label, self._size, count))
            first = epoch * places  # how often the class came before
            rounds = torch.arange(first // size, (first + places - 1) // size + 1)
            counters = rounds[:, None] * size + torch.arange(size)
            base = order.key(self._seed, label, 0, 2)  # as many numbers as no other key has
            shuffled = torch.argsort(order.keys(base, counters), dim=1, stable=True)
            stream = members[shuffled.flatten()]
            skip = first - int(rounds[0]) * size if places else 0
            out[label::count] = stream[skip : skip + places]
        return out


@lru_cache(maxsize=2)  # a batch reaches into two epochs at most
def _table(sampling: Sampling, epoch: int) -> Tensor:
    return sampling.table(epoch)
