"""The machines' clocks: torchrun's agents compare each other's times of day."""

import time

from host.errors import HostError
from train.nodes.meeting import Meeting
from train.nodes.stores import EACH

# torchrun takes a machine for lost whose clock is 15 s behind.
_LIMIT = 5.0
_ANSWER = 30.0  # seconds until a machine has told its time
ASKED = "lockstep/time"
"""With its number behind, what a machine writes when it asks node 0 for the time of day."""


def check(meeting: Meeting) -> None:
    """See that the clocks agree; where machines may come later, that this one's is as node 0's.

    Raises:
        HostError: a clock is wrong, or a machine does not tell its time.
    """
    if meeting.nodes.least is None:
        _check_all(meeting)
    elif meeting.nodes.rank != 0:
        _check_own(meeting)


def _check_all(meeting: Meeting) -> None:
    meeting.gathered("arrival", True, _ANSWER)
    # All write within a moment of each other.
    times = meeting.gathered("clock", time.time(), _ANSWER)
    for rank, there in enumerate(times):
        _compare(meeting, rank, there - times[0])


def _check_own(meeting: Meeting) -> None:
    """Ask node 0, whose agent answers for as long as it is there."""
    question = f"{ASKED}/{meeting.nodes.rank}"
    meeting.store.delete_key(f"{question}/answer")
    meeting.store.set(question, "?")
    deadline = time.monotonic() + _ANSWER
    while not meeting.store.check([f"{question}/answer"]):
        if time.monotonic() > deadline:
            raise HostError(
                f"{meeting.name(0)} does not tell its time", "look there what became of it"
            )
        time.sleep(EACH / 4)
    there = float(meeting.store.get(f"{question}/answer"))
    _compare(meeting, meeting.nodes.rank, time.time() - there)


def _compare(meeting: Meeting, rank: int, ahead: float) -> None:
    if abs(ahead) > _LIMIT:
        raise HostError(
            f"the clock of {meeting.name(rank)} is {abs(ahead):,.0f} s"
            f" {'ahead of' if ahead > 0 else 'behind'} node 0's",
            "set it, as with `timedatectl set-ntp true`",
        )
