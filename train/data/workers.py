"""Loader processes: items of a data set, in order, made ahead of their use."""

import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from host.errors import DataError
from train.process import parent

# Seconds that loader processes go on after a SIGTERM; torchrun and Accelerate give 30 to save in.
_GRACE = 40

T = TypeVar("T")


def load(
    dataset: Dataset[T | DataError], sampler: Any, workers: int, ahead: int, *, pin: bool = False
) -> Generator[T, None, None]:
    """Items of `dataset`; workers make `ahead` items each ahead.

    Close the generator to end its workers: whatever waits for them at exit must not find them.

    Args:
        pin: whether items are put into pinned memory, from which a GPU takes them by itself.

    Raises:
        DataError: one that an item is.
    """
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        pin_memory=pin,
        # Nothing of ours draws from it; but a worker's seeds then follow from nothing unrecorded.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=_become_worker,
    )
    items = iter(loader)
    try:
        for item in items:
            if isinstance(item, DataError):
                raise item
            yield item
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
    sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Of the thread that hands tensors over, while the trainer that takes them ends: the trainer
    # says why. What goes wrong with an item is not told here, but raised in the trainer.
    if not issubclass(kind, (OSError, EOFError)):
        sys.__excepthook__(kind, error, trace)
