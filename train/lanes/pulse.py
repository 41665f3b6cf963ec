"""Where a process is in the training, for whoever has to say what it waits for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

AGREEMENT = "an agreement of all processes"
"""What a process waits in where all decide something together."""


@dataclass
class Pulse:
    """How far this process is.

    Attributes:
        count: of lanes, and of what processes have done together: while it grows, it gets on.
        step: the step of training that it works at, from 1; 0 before the first.
        waits: what it does together with the others just now; empty where it works by itself.
    """

    count: int = 0
    step: int = 0
    waits: str = ""

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Do the block, which needs all processes; where it fails, `waits` goes on to say what."""
        self.waits = what
        yield
        self.waits = ""
        self.count += 1

    def place(self) -> str:
        """For people, as in "at step 31, in the sum of gradients"; empty before the first step."""
        at = f"at step {self.step}" if self.step else ""
        return ", ".join(part for part in (at, f"in {self.waits}" if self.waits else "") if part)
