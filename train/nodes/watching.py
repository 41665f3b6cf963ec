"""Whether the other machines live: each says so every second, over the store where they met.

A machine that is switched off or cut off closes no connection: its peers would wait for it until
the watchdog of the steps ends them, and would not know whom to name.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from host.errors import HostError, LockstepError, Stopped, from_fields
from train.nodes.clocks import ASKED
from train.nodes.meeting import Meeting
from train.nodes.stores import say
from train.process import outcome, standing

_KEY = "lockstep/alive"
_ENDED = "lockstep/ended"
_EACH = 1.0  # seconds between words
_SHARE = 4  # it is said after the fourth part of the silence after which the run ends
_GRACE = 10.0  # seconds in which trainers notice by themselves that another machine's ended
_NOTICE = 30.0  # seconds in which the main one comes to the end of its lanes, and sees it
_SAVE = 600.0  # seconds that the main one may take to save what it holds


class Watch:
    """Says that this machine lives, listens to the others, and ends its trainers with them.

    Attributes:
        lost: why the trainers were ended, if they were.
        members: the machines whose trainers train together.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.lost: LockstepError | None = None
        self.members: set[int] = set()
        self._limit = float(meeting.nodes.silence)
        self._soon = max(4 * _EACH, self._limit / _SHARE)
        self._elastic = meeting.nodes.least is not None
        self._others = [r for r in range(meeting.nodes.count) if r != meeting.nodes.rank]
        self._words = dict.fromkeys(self._others, b"")
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._ended: dict[int, tuple[float, LockstepError | None]] = {}
        # Those that were not there yet, or went: nobody waits for them.
        self._absent = {*self._others} if self._elastic else set()
        self._began, self._alone = False, 0  # whether trainers were there; words since without
        self._done = threading.Event()
        works = (self._watch, self._talk)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        # A connection of its own: the agent may wait on the other one.
        self._store: Any = meeting.store.clone()

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._done.set()
        self._threads[0].join(timeout=2 * _EACH)  # the other one may wait for a store that is gone

    def told(self, error: LockstepError | None) -> None:
        """Tell the others how this machine's trainers ended; None: well."""
        with suppress(RuntimeError):
            fields = json.dumps(error.fields() if error else {})
            self.meeting.store.set(f"{_ENDED}/{self.meeting.nodes.rank}", fields)

    def cause(self) -> LockstepError | None:
        """Why another machine ended, or that one does not answer; None where all seem well."""
        for rank, (_, error) in self._ended.copy().items():
            if error is not None:
                return self._of_other(rank, error)
        now = time.monotonic()
        for rank in self._quiet():
            if now - self._heard[rank] > 4 * _EACH:
                return self._silent(rank, now)
        return None

    def finished(self) -> bool:
        """Whether node 0 has come to the end of the training."""
        return self._ended.get(0, (0.0, True))[1] is None

    def _of_other(self, rank: int, error: LockstepError) -> LockstepError:
        """What another machine ended with, and its name."""
        who = self.meeting.name(rank)
        return type(error)(f"{who} ended: {error.problem}", error.fix)

    def _silent(self, rank: int, now: float) -> HostError:
        silence, place = now - self._heard[rank], standing.stood()
        waits = f"; the others wait {place}" if place else ""
        return HostError(
            f"{self.meeting.name(rank)}{self._ranks(rank)} has not been heard of for"
            f" {silence:.0f} s: it is off, or cut off, or stopped{waits}",
            "look there; then start all nodes again with the same words, RUN= and --resume",
        )

    def _ranks(self, rank: int) -> str:
        """Its processes, where their numbers are the same from the beginning to the end."""
        if self._elastic:
            return ""
        each = self.meeting.words[rank].processes
        numbers = f" {each * rank}" if each == 1 else f"es {each * rank} to {each * (rank + 1) - 1}"
        return f", process{numbers},"

    def _watch(self) -> None:
        said, last = False, time.monotonic()
        while not self._done.wait(_EACH):
            self._finish()
            now = time.monotonic()
            if now - last > self._soon:  # this machine was paused meanwhile
                self._heard = dict.fromkeys(self._others, now)
            last = now
            silent = [rank for rank in self._quiet() if now - self._heard[rank] > self._soon]
            if silent and not said:
                then = "it is done without" if self._elastic and silent[0] else "the run ends"
                say(
                    f"warning: {self.meeting.name(silent[0])} has not been heard of for"
                    f" {self._soon:.0f} s; {then} after {self._limit:.0f} s"
                )
            said = bool(silent)
            over = [rank for rank in silent if now - self._heard[rank] > self._limit]
            ended = [
                self._of_other(rank, error)
                for rank, (when, error) in self._ended.copy().items()
                if error is not None
                and now - when > _GRACE
                and not (self._elastic and isinstance(error, HostError))
            ]
            if self._elastic and over and 0 not in over:
                self._absent |= {*over}
                if self.members & {*over}:
                    say(f"going on without {self.meeting.name(over[0])}")
                    self._kill()  # torchrun's agent starts them again, with those that are there
            elif over or ended:
                self._end(self._silent(over[0], now) if over else ended[0], silence=bool(over))
                return

    def _quiet(self) -> list[int]:
        """The machines that are to be heard, and have not ended."""
        found = [r for r in self._others if r not in self._ended and r not in self._absent]
        # Node 0 has the store: while it does not answer, the others cannot be heard.
        own_store = self.meeting.nodes.rank == 0
        gone = not own_store and 0 in found and time.monotonic() - self._heard[0] > 3 * _EACH
        return [0] if gone else found

    def _finish(self) -> None:
        """Leave where this machine's trainers are done, and another's will not say so any more.

        torchrun's agents would wait five minutes for each other.
        """
        if psutil.Process().children():
            self._began, self._alone = True, 0
            return
        if self._elastic:  # trainers may be about to be started again
            own = self.meeting.nodes.rank == 0
            over = bool(self.members & self._absent) if own else self.finished()
        else:
            over = self.cause() is not None
        self._alone += self._began and (over or outcome.asked())
        if self._alone > _GRACE / _EACH:
            self.told(None)
            os._exit(0)

    def _talk(self) -> None:
        """Say that this machine lives, and hear the others, until the store is gone.

        Who asks a machine that is off waits for minutes: so the other thread counts the time.
        """
        count = 0
        with suppress(RuntimeError):
            self._store.delete_key(f"{_ENDED}/{self.meeting.nodes.rank}")
            while not self._done.wait(_EACH):
                count += 1
                self._say_and_hear(count)

    def _say_and_hear(self, count: int) -> None:
        self._store.set(f"{_KEY}/{self.meeting.nodes.rank}", str(count))
        if self._elastic and self.meeting.nodes.rank == 0:
            for question in (f"{ASKED}/{rank}" for rank in self._others):
                if self._store.check([question]):
                    self._store.delete_key(question)
                    self._store.set(f"{question}/answer", str(time.time()))
        for rank in self._others:
            if self._store.check([f"{_KEY}/{rank}"]):
                word = self._store.get(f"{_KEY}/{rank}")
                if word != self._words[rank]:
                    if self._words[rank]:  # else it may be an old one's
                        self._absent -= {rank}
                    self._words[rank], self._heard[rank] = word, time.monotonic()
            if self._store.check([f"{_ENDED}/{rank}"]):
                fields = json.loads(self._store.get(f"{_ENDED}/{rank}"))
                error = from_fields(fields) if fields else None
                self._ended.setdefault(rank, (time.monotonic(), error))
            else:
                self._ended.pop(rank, None)  # it has come again

    def _kill(self) -> None:
        """End this machine's trainers, whatever they hang in; the main one may save first."""
        trainers = psutil.Process().children()
        began = time.monotonic()
        # On a GPU too, where the training itself hangs.
        while standing.writes() and any(map(_lives, trainers)):
            time.sleep(_EACH / 4)
            if time.monotonic() - began > _SAVE:
                break
        if self.meeting.nodes.rank == 0 and self.meeting.words[0].device == "cpu":
            standing.lose_others()
            began = time.monotonic()
            # Not waited for as children: their exit codes are torchrun's.
            while any(map(_lives, trainers)):
                time.sleep(_EACH / 4)
                if time.monotonic() - began > (_SAVE if standing.saves() else _NOTICE):
                    break
        for trainer in trainers:
            with suppress(psutil.Error):
                for process in (*trainer.children(recursive=True), trainer):
                    process.kill()
        standing.clear()

    def _end(self, error: LockstepError, *, silence: bool) -> None:
        """End this machine's part of the training."""
        self.lost = error
        self._kill()
        said = outcome.told().error
        # Who was asked to stop and has saved ended well, whoever is not heard of since. torchrun's
        # agent asks too, to start trainers again.
        if silence and isinstance(said, Stopped) and (not self._elastic or outcome.asked()):
            self.lost = error = said
        # torchrun's agent may ask a store that is gone.
        if not self._done.wait(_GRACE):
            outcome.ended(error)
            os._exit(error.code)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def watched(meeting: Meeting) -> Iterator[Watch]:
    """Watch for as long as the block lasts."""
    watch = Watch(meeting)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
