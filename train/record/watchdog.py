"""Says what a run waits for when it gets no further, and ends it when that lasts too long.

A thread of each process looks whether its process makes progress: each agreement between processes
is a sign of it, which a step needs, a batch of an evaluation and a save. What the main thread does
meanwhile stands in its stack. Over the store that started them, processes tell each other.
"""

import faulthandler
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from host import launcher
from host.errors import HostError
from train.lanes.runtime import Runtime
from train.process import outcome, standing
from train.record import manifest

_OTHERS, _DISK = "the others", "the disk"
# Where the main thread is, by a part of a file's path; the first that is in its stack counts.
_PLACES = (
    ("torch/distributed/", _OTHERS),
    ("train/lanes/exchange.py", _OTHERS),
    ("train/lanes/vote.py", _OTHERS),
    ("train/record/", _DISK),
    ("torch/utils/tensorboard/", _DISK),
    ("train/data/", "data"),
    ("train/measure.py", "the model, in an evaluation"),
)
_ELSE = "the model"
_SHARE = 10  # it is said after the tenth part of the time after which the run ends
_PREFIX = "lockstep/watchdog"


@dataclass(frozen=True)
class _Word:
    """What a process says of itself.

    Attributes:
        count: shows that it lives.
        place: where in the training it is.
        waits: what for.
    """

    count: int
    host: str
    place: str
    waits: str

    def packed(self) -> str:
        return f"{self.count}|{self.host}|{self.place}|{self.waits}"

    @staticmethod
    def unpacked(text: str) -> "_Word":
        count, host, place, waits = text.split("|", 3)
        return _Word(int(count), host, place, waits)


class Watchdog:
    """Watches a run from a thread of its own.

    Args:
        run: the run directory, for stacks.
        limit: seconds without progress after which the run ends.
    """

    def __init__(self, runtime: Runtime, run: Path, limit: int) -> None:
        self.runtime, self.run, self.limit = runtime, run, limit
        self._main = threading.main_thread().ident or 0
        self._period = min(5.0, limit / _SHARE / 4)
        self._done = threading.Event()
        ranks, now = range(runtime.world), time.monotonic()
        self._words = {rank: _Word(-1, "", "", _ELSE) for rank in ranks}
        self._heard = dict.fromkeys(ranks, now)  # when each process last said something new
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        if runtime.world > 1:
            # Apart: where the process that holds the store stands still, so does who asks it.
            self._store: Any = dist.distributed_c10d._get_default_store().clone()
            self._threads.append(threading.Thread(target=self._talk, daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; what is being said is not waited for."""
        self._done.set()
        for thread in self._threads:
            thread.join(timeout=1)

    def _watch(self) -> None:
        seen, since, said, last = self.runtime.pulse.count, time.monotonic(), "", time.monotonic()
        while not self._done.wait(self._period):
            now = time.monotonic()
            if now - last > 3 * self._period:  # all of it was paused, as by docker pause
                since += now - last
                self._heard = {rank: then + now - last for rank, then in self._heard.items()}
            last = now
            if self.runtime.pulse.count != seen:
                seen, since = self.runtime.pulse.count, now
                if standing.stood() and launcher.local_rank() == 0:
                    standing.stands("")
                said = said if said.endswith(_ELSE) else ""  # what computes long does so again
            idle, rank = now - since, self.runtime.rank
            if idle >= self._period and launcher.local_rank() == 0:
                standing.stands(self.runtime.pulse.place())
            if idle < self.limit / _SHARE:
                continue
            self._words[rank], self._heard[rank] = self._word(0), now
            speaks = rank == min(r for r in self._words if not self._silent(r, now))
            if idle >= self.limit:
                self._end(idle, now, speaks=speaks)
            if not said:
                said = self._cause(now)
                if speaks:
                    text = f"warning: no step for {idle:.0f} s: {said};"
                    text += f" the run ends after {self.limit} s (watchdog)"
                    print(text, file=sys.stderr, flush=True)

    def _talk(self) -> None:
        """Say how this process fares, and hear of the others, until the store is gone."""
        count, others = 0, [r for r in range(self.runtime.world) if r != self.runtime.rank]
        with suppress(RuntimeError):
            while not self._done.wait(self._period):
                count += 1
                self._store.set(f"{_PREFIX}/{self.runtime.rank}", self._word(count).packed())
                for rank in others:
                    key = f"{_PREFIX}/{rank}"
                    if not self._store.check([key]):
                        continue
                    word = _Word.unpacked(self._store.get(key).decode())
                    if self._words[rank].count != word.count:
                        self._words[rank], self._heard[rank] = word, time.monotonic()

    def _silent(self, rank: int, now: float) -> bool:
        """Whether a process has said nothing for some periods, though it has before."""
        return now - self._heard[rank] > 4 * self._period

    def _word(self, count: int) -> _Word:
        return _Word(count, platform.node(), self.runtime.pulse.place(), self._waits())

    def _waits(self) -> str:
        # Names alone: what `traceback` makes of a stack reads the files, of a disk that may hang.
        frame, files = sys._current_frames().get(self._main), []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        for part, what in _PLACES:
            if any(part in file for file in files):
                return what if what != "data" else f"data{self._loaders()}"
        return _ELSE

    def _loaders(self) -> str:
        """Which loader processes stand still, for people."""
        stuck = []
        with suppress(psutil.Error):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    state = child.status()
                    if state in (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP):
                        how = "is stopped" if state == psutil.STATUS_STOPPED else "waits for a disk"
                        stuck.append(f"loader process {child.pid} {how}")
        return f" ({'; '.join(stuck)})" if stuck else ""

    def _cause(self, now: float) -> str:
        """Whom or what the run waits for, and in what the others stand meanwhile."""
        found, places = [], dict[str, list[str]]()
        for rank, word in sorted(self._words.copy().items()):
            who = f"process {rank}{f' on {word.host}' * bool(word.host)}"
            if self._silent(rank, now):
                found.append(f"{who} does not answer: it is stopped, or its machine is gone")
            elif word.waits != _OTHERS:
                found.append(f"{who} waits for {word.waits}")
            else:
                places.setdefault(word.place, []).append(who)
        if found:
            place = min(places, default="")
            return "; ".join([*found, *[f"the others wait {place}"] * bool(place)])
        if len(places) == 1:
            return f"all processes wait for each other {min(places)}".rstrip()
        # Such as a model that has its own collectives, or another number of batches.
        stand = "; ".join(f"{_few(each)} {place}" for place, each in sorted(places.items()))
        return f"processes wait for each other in different places: {stand}"

    def _end(self, idle: float, now: float, *, speaks: bool) -> None:
        """End this process, whatever its main thread hangs in."""
        cause, stacks = self._cause(now), self.run / f"stacks-{self.runtime.rank}.txt"
        # Who writes to a disk that hangs can be ended by nobody.
        hangs = _DISK in cause
        where = "" if hangs else f"; {stacks} says where each thread was"
        error = HostError(
            f"no step for {idle:.0f} s: {cause}",
            f"mend that, then add --resume{where}; --watchdog 0 waits for ever",
            one_rank=True,
        )
        if speaks:
            print(error.line(), file=sys.stderr, flush=True)
        if speaks or launcher.local_rank() == 0:  # to each machine's launcher
            outcome.ended(error, shown=speaks)
        if not hangs:
            with suppress(OSError):
                stacks.parent.mkdir(parents=True, exist_ok=True)  # a machine may have its own disk
                with stacks.open("w") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
            if self.runtime.main:
                manifest.close(self.run, error)
        os._exit(error.code)


def _few(names: list[str]) -> str:
    """The first of them."""
    return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)


@contextmanager
def watching(runtime: Runtime, run: Path, limit: int) -> Iterator[None]:
    """Have the block watched; not at all where `limit` is 0."""
    dog = Watchdog(runtime, run, limit) if limit else None
    if dog:
        dog.start()
    try:
        yield
    finally:
        if dog:
            dog.stop()
