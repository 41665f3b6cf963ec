"""Whether a flag is set on any process, asked early: the answer travels while processes compute."""

from typing import Any

import torch
import torch.distributed as dist

from train.lanes.pulse import AGREEMENT, Pulse


class Vote:
    """One question at a time. All processes ask, and take the answer, at the same places.

    Args:
        control: a CPU process group; None for a single process.
    """

    def __init__(self, control: dist.ProcessGroup | None, pulse: Pulse) -> None:
        self._control, self._pulse = control, pulse
        self._flag = torch.tensor(0)
        self._work: Any = None

    def ask(self, flag: bool) -> None:
        """Begin to ask, and do not wait; an earlier answer that nobody took is dropped."""
        self.answer()
        self._flag = torch.tensor(int(flag))
        if self._control is not None:
            op = dist.ReduceOp.MAX
            self._work = dist.all_reduce(self._flag, op, group=self._control, async_op=True)

    def answer(self) -> bool:
        """Whether the flag was set anywhere when it was asked for; False where nobody asked."""
        with self._pulse.together(AGREEMENT):
            if self._work is not None:
                self._work.wait()
        flag, self._flag, self._work = bool(self._flag), torch.tensor(0), None
        return flag
