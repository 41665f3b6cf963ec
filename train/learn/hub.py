"""The Hugging Face hub, from which weights come: what is said before and when they do not."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from host import launcher
from host.errors import LockstepError, UsageError, first_line
from host.text import printable


@contextmanager
def asked(named: str, fix: str) -> Iterator[None]:
    """Within it weights are fetched; what `named` says of them is told first.

    Raises:
        UsageError: they cannot be had; `fix` says what to do.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of each retry
    if launcher.rank():
        disable_progress_bars()
    else:
        _tell(named)
    try:
        yield
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # whatever the libraries below raise
        why = first_line(error)
        if isinstance(error, LocalEntryNotFoundError):
            why = "the cache has not got them, and the hub does not answer"
        raise UsageError(f"{named} cannot be had: {why}", fix) from error


@cache  # a model is built several times, to be tried
def _tell(named: str) -> None:
    print(printable(f"looking for {named}, in the cache and on the hub"), flush=True)
