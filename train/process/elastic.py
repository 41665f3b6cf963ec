"""Where machines may go and come: which processes of a round train, and which run is gone on with.

torchrun starts all trainers again when a machine is lost or comes back, with as many as there are
then. Five are no faster at eight lanes than four: so four train, and the fifth waits for the next
round.
"""

import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from host import launcher
from host.errors import LostPeers, Stopped
from host.lanes import sharing
from train.process import outcome
from train.process.interrupt import StopFlag

_DONE = "lockstep/done"
_EACH = 0.5


def spare(lanes: int, stop: StopFlag, level: str) -> bool:
    """Whether this process has nothing to train, once the others have trained; else False at once.

    The others are told in WORLD_SIZE how many they are.

    Args:
        level: of `reproducibility`.

    Raises:
        LostPeers: the others are gone; torchrun will start a round without them.
        Stopped: a signal came.
    """
    world = launcher.world() or 1
    if launcher.elastic() is None:
        return False
    fit = max(count for count in sharing(lanes, level) if count <= world)
    if launcher.rank() < fit:
        if launcher.rank() == 0 and fit < world:
            print(f"{fit} of {world} processes share the {lanes} lanes; the others wait")
        os.environ["WORLD_SIZE"] = str(fit)
        return False
    outcome.begun()
    try:
        store = _store()
        while not store.check([_DONE]):
            if stop:
                raise Stopped("a signal came to a process that waits", "nothing is lost")
            time.sleep(_EACH)
    except RuntimeError as error:
        rank = launcher.rank()
        raise LostPeers(f"process {rank} lost the others", "see what they say") from error
    return True


def done() -> None:
    """Tell those that wait that there is nothing left to train."""
    if launcher.elastic() is not None and launcher.rank() == 0:
        with suppress(RuntimeError):
            _store().set(_DONE, "yes")


def _store() -> Any:
    """The one of this round, where all of its processes meet."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*place, is_master=False, timeout=timedelta(seconds=60))


def known() -> Path | None:
    """The run that this launch has begun, where it was started again."""
    note = launcher.elastic()
    if note is None:
        return None
    try:
        return Path(Path(note).read_text())
    except OSError:  # the first round: nothing is chosen yet
        return None


def chosen(run: Path) -> None:
    """Remember the run for the next round."""
    note = launcher.elastic()
    if note is not None:
        Path(note).write_text(str(run.absolute()))
