"""From ranges of stream positions to batches on the device, loaded ahead by workers."""

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from host.errors import DataError
from train.config import Config
from train.data.images import Split
from train.data.sampling import Sampling
from train.data.workers import load
from train.lanes import order
from train.learn.schedule import size_at

_BLOCK = 4 << 20  # bytes of pixels of the lanes that are handed over together, unless one has more


@dataclass(frozen=True)
class Batch:
    """Samples: images [B, C, H, W], labels int64 [B], keys int64 [B].

    Images are uint8 as they were read, or float32 once they are varied and normalised.

    Attributes:
        partners: labels of what each was mixed with, int64 [B]; None where nothing is mixed.
        shares: how much is its own of each, float32 [B].
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    partners: Tensor | None = None
    shares: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same on `device`; asynchronous from pinned memory."""
        moved = (t.to(device, non_blocking=True) for t in (self.images, self.labels, self.keys))
        return Batch(*moved)

    def pin_memory(self) -> "Batch":
        """The same in pinned memory (the DataLoader looks for a method of this name)."""
        images = self.images.pin_memory() if self.images.device.type == "cpu" else self.images
        return Batch(images, self.labels.pin_memory(), self.keys.pin_memory())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def prevailing(self) -> Tensor:
        """The label that has the larger share of each, int64 [B]."""
        if self.partners is None or self.shares is None:
            return self.labels
        return torch.where(self.shares >= 0.5, self.labels, self.partners)

    def split(self, sizes: list[int]) -> "list[Batch]":
        """Its parts, in memory of their own: kernels may follow where in memory a tensor begins."""
        cut = (torch.split(t, sizes) for t in (self.images, self.labels, self.keys))
        return [Batch(*(t.clone() for t in part)) for part in zip(*cut, strict=True)]


class _Stream(Dataset[Batch | DataError]):
    """The stream of positions as a data set whose items are runs of it."""

    def __init__(self, split: Split, config: Config, total: int) -> None:
        self.split, self.config = split, config
        self.sampling = Sampling(config, split.labels)
        self.steps = order.steps(total, config.batch_size)

    def __getitem__(self, span: tuple[int, int]) -> Batch | DataError:
        return _fetch(self.split, *self.sampling.at(*span), self._size(span[0]))

    def _size(self, start: int) -> int | None:
        """Of windows at a position of the stream; None: the split's own."""
        augment = self.config.augment
        if augment.sizes is None:
            return None
        step, last = start // self.config.batch_size, self.split.shape[1]
        return size_at(step, self.steps, augment.sizes, augment.until, last)


class _InOrder(Dataset[Batch | DataError]):
    """A split in its own order, as a data set whose items are whole batches."""

    def __init__(self, split: Split, batch_size: int) -> None:
        self.split = split
        self.batch_size = batch_size

    def __getitem__(self, start: int) -> Batch | DataError:
        numbers = torch.arange(start, min(start + self.batch_size, len(self.split)))
        return _fetch(self.split, numbers, None)


def _fetch(
    split: Split, numbers: Tensor, keys: Tensor | None, size: int | None = None
) -> Batch | DataError:
    try:
        images = split.images(numbers, keys, size)
        return Batch(images, split.labels[numbers], numbers if keys is None else keys)
    except DataError as error:
        return error  # a worker's exception would arrive as text, without its exit code


class _Blocks:
    """Runs of neighbouring lanes that are read and varied together, step by step.

    What is done to many small lanes at once costs as much as what is done to one. Which lanes are
    neighbours follows from the number of processes; what becomes of a sample does not.
    """

    def __init__(self, split: Split, config: Config, lanes: range, first: int, total: int) -> None:
        lane = config.micro_batch * math.prod(split.shape)
        # Of lanes that are no neighbours each comes by itself.
        count = max(1, _BLOCK // lane) if lanes.step == 1 else 1
        self.runs = [lanes[n : n + count] for n in range(0, len(lanes), count)]
        self.steps = range(first, order.steps(total, config.batch_size))
        self.config, self.total = config, total

    def __len__(self) -> int:
        return len(self.steps) * len(self.runs)

    def bounds(self) -> Iterator[list[tuple[int, int]]]:
        """For each block, the stream positions of each of its lanes."""
        lanes, size = self.config.lanes, self.config.batch_size
        for step in self.steps:
            for run in self.runs:
                yield [
                    order.lane_range(step, lane, lanes=lanes, batch_size=size, total=self.total)
                    for lane in run
                ]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for lanes in self.bounds():
            yield lanes[0][0], lanes[-1][1]


def lane_blocks(
    split: Split,
    config: Config,
    lanes: range,
    device: torch.device,
    *,
    first_step: int,
    total: int,
) -> Generator[tuple[Batch, list[int]], None, None]:
    """The lanes' samples in order, from `first_step` to the end of the `total` samples.

    Neighbouring lanes come together where they are small: a batch, and how many samples of it are
    each lane's. Close the generator to end its workers: whatever waits for them at exit must not
    find them.

    Raises:
        DataError: an image cannot be read.
    """
    blocks = _Blocks(split, config, lanes, first_step, total)
    ahead = config.data.prefetch * len(blocks.runs)
    pin = device.type == "cuda"
    loaded = load(_Stream(split, config, total), blocks, config.data.workers, ahead, pin=pin)
    with closing(loaded):
        for bounds, batch in zip(blocks.bounds(), loaded, strict=True):
            yield batch.to(device), [stop - start for start, stop in bounds]


def eval_batches(
    split: Split, config: Config, mine: slice, device: torch.device
) -> Generator[tuple[int, Batch], None, None]:
    """Those of the split's batches that `mine` picks, each with its first sample's number.

    Raises:
        DataError: an image cannot be read.
    """
    starts = range(0, len(split), config.eval_batch)[mine]
    # What is in memory is at hand sooner than a worker is started.
    workers = 0 if split.resident is not None else config.data.workers
    ahead = config.data.prefetch
    pin = device.type == "cuda"
    batches = load(_InOrder(split, config.eval_batch), starts, workers, ahead, pin=pin)
    with closing(batches):
        for start, batch in zip(starts, batches, strict=True):
            yield start, batch.to(device)
