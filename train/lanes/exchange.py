"""Sums across processes, one bucket after another, beside the training.

Where two processes exchange their partial sums, each adds what it gets: as a + b and b + a are the
same bits, both hold the same sum. Who exchanges with whom is the plan's to say.
"""

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.lanes.joining import Plan
from train.lanes.state import in_place_of
from train.lanes.team import Team

# Numbers between the starts of two tensors in a bucket are a multiple of this: CUDA's reductions
# take an order that depends on alignment, and gradients stand at aligned places otherwise.
_ALIGN = 64
BUCKET = 25 * 2**20
"""Bytes of gradients that are exchanged at once."""


class Exchange:
    """Buckets of tensors that become sums over all processes.

    Args:
        buckets: for each bucket, tensors of the shapes it will hold, all of one dtype and device.
        plan: of several processes.
        team: who they are; None: all.

    Attributes:
        views: each bucket's tensors, for each of the plan's subtrees; they are to be filled before
            `start`, and those of the plan's result hold the sums from `finish` on.
        ranks: the numbers of the plan's processes.
        group: theirs.
    """

    def __init__(
        self, buckets: Sequence[Sequence[Tensor]], plan: Plan, team: Team | None = None
    ) -> None:
        self.plan = plan
        self.ranks = list(range(dist.get_world_size())) if team is None else team.ranks
        self.views: list[list[list[Tensor]]] = []
        # What is summed for each subtree; and what arrives, of one bucket after another.
        self._flat: list[list[Tensor]] = []
        self._arriving: dict[torch.dtype, Tensor] = {}
        for bucket in buckets:
            starts, size = [], 0
            for tensor in bucket:
                starts.append(size)
                size += -(-tensor.numel() // _ALIGN) * _ALIGN
            flats = [bucket[0].new_zeros(size) for _ in plan.subtrees]
            self._flat.append(flats)
            kind = bucket[0].dtype
            if kind not in self._arriving or len(self._arriving[kind]) < size:
                self._arriving[kind] = torch.empty_like(flats[0])
            self.views.append(
                [
                    [
                        in_place_of(tensor, flat, start)
                        for start, tensor in zip(starts, bucket, strict=True)
                    ]
                    for flat in flats
                ]
            )
        # A group of its own: what else processes tell each other may go on at the same time.
        group: Any = dist.new_group() if team is None else team.group()
        self.group: dist.ProcessGroup | None = group
        sample = self._flat[0][0]
        self._staged = through_host(sample, group)
        # NCCL waits on a stream. gloo waits in the calling thread, so it gets one.
        self._stream = torch.cuda.Stream() if sample.is_cuda and not self._staged else None
        self._pending = 0
        self._jobs: SimpleQueue[int | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Exception | None] = SimpleQueue()
        if self._stream is None:
            # A daemon: a process that fails must be able to leave while it waits for another one.
            threading.Thread(target=self._serve, daemon=True).start()

    def start(self, number: int) -> None:
        """Begin to sum bucket `number`. All processes start buckets in the same order."""
        if self._stream is None:
            if self._staged:  # what fills the bucket may still be in the queue
                torch.cuda.current_stream().synchronize()
            self._jobs.put(number)
            self._pending += 1
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._join(number)

    def finish(self) -> None:
        """Wait for all buckets."""
        while self._pending:
            error = self._outcomes.get()
            self._pending -= 1
            if error is not None:
                raise error
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def close(self) -> None:
        """End the thread and the group; on all processes, and with nothing pending."""
        self._jobs.put(None)
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)

    def _serve(self) -> None:
        # A new thread would take as many OpenMP threads as there are cores.
        torch.set_num_threads(1)
        while (number := self._jobs.get()) is not None:
            try:
                self._join(number)
            except Exception as error:  # whatever the network says: `finish` raises it
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)

    def sums(self) -> list[Tensor]:
        """The sums, bucket after bucket."""
        return [tensor for bucket in self.views for tensor in bucket[self.plan.result]]

    def _join(self, number: int) -> None:
        flats = self._flat[number]
        if self._staged:
            staged = [flat.cpu() for flat in flats]
            self._sum(number, staged, torch.empty_like(staged[0]))
            flats[self.plan.result].copy_(staged[self.plan.result])
            torch.cuda.current_stream(flats[0].device).synchronize()
        else:
            self._sum(number, flats, self._arriving[flats[0].dtype][: len(flats[0])])

    def _sum(self, number: int, flats: Sequence[Tensor], other: Tensor) -> None:
        """Make one of `flats` the sum over all processes; what arrives goes through `other`."""
        if not other.numel():
            return
        for join in self.plan.joins:
            mine = flats[join.own]
            if join.peer is not None:
                given, taken = mine if join.gives else None, other if join.takes else None
                swap(given, taken, self.ranks[join.peer], self.group, number)
                if join.takes:
                    mine.add_(other)
            elif join.other is not None:
                mine.add_(flats[join.other])
        if self.plan.source is not None:
            whole = flats[self.plan.result].view(torch.uint8)
            dist.broadcast(whole, src=self.ranks[self.plan.source], group=self.group)


def split(size: int, like: Sequence[Tensor], early: int) -> list[list[int]]:
    """Cut what is exchanged into buckets of one type, of at most `size` bytes or one tensor.

    Args:
        early: how many of `like` are exchanged as soon as they are there.

    Returns:
        Of each bucket the numbers in `like`.
    """
    buckets: list[list[int]] = []
    held, last = 0, None
    for number, tensor in enumerate(like):
        held += tensor.nbytes
        kind = tensor.dtype, number < early
        if held > size or kind != last:
            buckets.append([])
            held, last = tensor.nbytes, kind
        buckets[-1].append(number)
    return buckets


def through_host(tensor: Tensor, group: dist.ProcessGroup | None) -> bool:
    """Whether a tensor must be copied to the host's memory to be sent: gloo sends from no other."""
    return tensor.is_cuda and dist.get_backend(group) == "gloo"


def swap(
    mine: Tensor | None,
    other: Tensor | None,
    peer: int,
    group: dist.ProcessGroup | None,
    tag: int,
) -> None:
    """Give a neighbour `mine`, and have what it gives in `other`; both contiguous.

    Args:
        mine, other: None: nothing goes this way.
    """
    # As bytes: networks do not know every type. To receive stands first: gloo otherwise sends one
    # way after the other, and needs twice the time on a slow link.
    both = []
    if other is not None:
        both.append(dist.P2POp(dist.irecv, other.view(torch.uint8), peer, group, tag))
    if mine is not None:
        both.append(dist.P2POp(dist.isend, mine.view(torch.uint8), peer, group, tag))
    for work in dist.batch_isend_irecv(both):
        work.wait()
