"""From ranges of stream positions to batches on the device, loaded ahead by workers."""

import math
import signal
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from host.errors import DataError
from train.config import Config
from train.data.images import Split
from train.lanes import order
from train.process import parent

_BLOCK = 4 << 20  # bytes of pixels of the lanes that are handed over together, unless one has more
# Seconds that loader processes go on after a SIGTERM; torchrun and Accelerate give 30 to save in.
_GRACE = 40


@dataclass(frozen=True)
class Batch:
    """Samples: images [B, C, H, W], labels int64 [B], keys int64 [B].

    Images are uint8 as they were read, or float32 once they are varied and normalised.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on `device`; asynchronous from pinned memory."""
        moved = (t.to(device, non_blocking=True) for t in (self.images, self.labels, self.keys))
        return Batch(*moved)

    def pin_memory(self) -> "Batch":
        """The same in pinned memory (the DataLoader looks for a method of this name)."""
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.keys.pin_memory())

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, sizes: list[int]) -> "list[Batch]":
        """Its parts, in memory of their own: kernels may follow where in memory a tensor begins."""
        cut = (torch.split(t, sizes) for t in (self.images, self.labels, self.keys))
        return [Batch(*(t.clone() for t in part)) for part in zip(*cut, strict=True)]


class _Stream(Dataset[Batch | DataError]):
    """The stream of positions as a data set whose items are runs of it."""

    def __init__(self, split: Split, seed: int) -> None:
        self.split = split
        self.seed = seed

    def __getitem__(self, span: tuple[int, int]) -> Batch | DataError:
        return _fetch(self.split, *order.samples(self.seed, len(self.split), *span))


class _InOrder(Dataset[Batch | DataError]):
    """A split in its own order, as a data set whose items are whole batches."""

    def __init__(self, split: Split, batch_size: int) -> None:
        self.split = split
        self.batch_size = batch_size

    def __getitem__(self, start: int) -> Batch | DataError:
        numbers = torch.arange(start, min(start + self.batch_size, len(self.split)))
        return _fetch(self.split, numbers, numbers)


def _fetch(split: Split, numbers: Tensor, keys: Tensor) -> Batch | DataError:
    try:
        return Batch(split.images(numbers), split.labels[numbers], keys)
    except DataError as error:
        return error  # a worker's exception would arrive as text, without its exit code


class _Blocks:
    """Runs of neighbouring lanes that are read and varied together, step by step.

    What is done to many small lanes at once costs as much as what is done to one. Which lanes are
    neighbours follows from the number of processes; what becomes of a sample does not.
    """

    def __init__(self, split: Split, config: Config, lanes: range, first: int, total: int) -> None:
        lane = config.micro_batch * math.prod(split.shape)
        count = max(1, _BLOCK // lane)
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
    loaded = _load(_Stream(split, config.seed), blocks, config.data.workers, ahead, device)
    with closing(loaded):
        for bounds, batch in zip(blocks.bounds(), loaded, strict=True):
            yield batch, [stop - start for start, stop in bounds]


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
    batches = _load(_InOrder(split, config.eval_batch), starts, workers, ahead, device)
    with closing(batches):
        yield from zip(starts, batches, strict=True)


def _load(
    dataset: Dataset[Batch | DataError],
    sampler: Any,
    workers: int,
    ahead: int,
    device: torch.device,
) -> Generator[Batch, None, None]:
    """Items of `dataset` on `device`; workers load `ahead` items each ahead."""
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        pin_memory=device.type == "cuda",
        # Nothing of ours draws from it; but a worker's seeds then follow from nothing unrecorded.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=_become_worker,
    )
    items = iter(loader)
    try:
        for item in items:
            if isinstance(item, DataError):
                raise item
            yield item.to(device)
    except (OSError, EOFError) as error:
        if not workers:
            raise
        # A worker that died while it handed over a tensor; torch knows of the others.
        raise RuntimeError(f"DataLoader worker is gone: {error or 'end of file'}") from error
    finally:
        # It would do so when it is collected; but an error's traceback may hold it until the
        # process ends, which waits for its workers first.
        if workers:
            with suppress(RuntimeError):  # one that dies now was on its way out
                items._shutdown_workers()  # type: ignore[attr-defined]


def _become_worker(_worker: int) -> None:
    # Ctrl-C, scancel or a stopping service reach every process; workers end when their trainer
    # does, whichever way it ends. SIGTERM is also how that asks for it, as a last resort: it is
    # heeded when a stop has long had its time.
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE))
    parent.signal_on_death(signal.SIGKILL)
    torch.set_num_threads(1)
