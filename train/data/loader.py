"""From a range of stream positions to a lane's batch on the device, loaded ahead by workers."""

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

# Seconds that loader processes go on after a SIGTERM; torchrun and Accelerate give 30 to save in.
_GRACE = 40


@dataclass(frozen=True)
class Batch:
    """One lane's samples: uint8 images [B, C, H, W], labels int64 [B], keys int64 [B]."""

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


class _Stream(Dataset[Batch | DataError]):
    """The stream of positions as a data set whose items are whole lanes."""

    def __init__(self, split: Split, seed: int) -> None:
        self.split = split
        self.seed = seed

    def __getitem__(self, span: tuple[int, int]) -> Batch | DataError:
        return _fetch(self.split, *order.samples(self.seed, len(self.split), *span))


class _Blocks(Dataset[Batch | DataError]):
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


class _Spans:
    """The spans of positions that this process's lanes take, step by step."""

    def __init__(self, config: Config, lanes: range, first_step: int, total: int) -> None:
        self.config = config
        self.lanes = lanes
        self.steps = range(first_step, order.steps(total, config.batch_size))
        self.total = total

    def __len__(self) -> int:
        return len(self.steps) * len(self.lanes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in self.steps:
            for lane in self.lanes:
                yield order.lane_range(
                    step,
                    lane,
                    lanes=self.config.lanes,
                    batch_size=self.config.batch_size,
                    total=self.total,
                )


def lane_batches(
    split: Split,
    config: Config,
    lanes: range,
    device: torch.device,
    *,
    first_step: int,
    total: int,
) -> Generator[Batch, None, None]:
    """The lanes' batches in order, from `first_step` to the end of the `total` samples.

    Close the generator to end its workers: whatever waits for them at exit must not find them.

    Raises:
        DataError: an image cannot be read.
    """
    spans = _Spans(config, lanes, first_step, total)
    ahead = config.data.prefetch * len(lanes)
    return _load(_Stream(split, config.seed), spans, config.data.workers, ahead, device)


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
    batches = _load(_Blocks(split, config.eval_batch), starts, workers, ahead, device)
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
