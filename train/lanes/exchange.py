"""Sums across processes by recursive doubling, one bucket after another, beside the training.

At distance 1, 2, 4, … each process sends its partial sum to the process whose rank differs in
that bit, and adds what it gets: as a + b and b + a are the same bits, both hold the same sum.
"""

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Numbers between the starts of two tensors in a bucket are a multiple of this: CUDA's reductions
# take an order that depends on alignment, and gradients stand at aligned places otherwise.
_ALIGN = 64


class Exchange:
    """Buckets of tensors that become sums over all processes.

    Args:
        buckets: for each bucket, tensors of the shapes it will hold, all of one dtype and device.
        world: number of processes, a power of two above 1.

    Attributes:
        views: each bucket's tensors; they are to be filled before `start`, and hold the sums from
            `finish` on.
    """

    def __init__(self, buckets: Sequence[Sequence[Tensor]], rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.views: list[list[Tensor]] = []
        self._flat: list[tuple[Tensor, Tensor]] = []  # what is summed, and what arrives
        for bucket in buckets:
            starts, size = [], 0
            for tensor in bucket:
                starts.append(size)
                size += -(-tensor.numel() // _ALIGN) * _ALIGN
            flat = bucket[0].new_zeros(size)
            self._flat.append((flat, torch.empty_like(flat)))
            self.views.append(
                [
                    flat[start : start + tensor.numel()].view(tensor.shape)
                    for start, tensor in zip(starts, bucket, strict=True)
                ]
            )
        # A group of its own: what else processes tell each other may go on at the same time.
        group: Any = dist.new_group()
        self._group: dist.ProcessGroup | None = group
        cuda = self._flat[0][0].is_cuda
        # NCCL waits on a stream. gloo waits in the calling thread, so it gets one, and it sends
        # only what is in the host's memory.
        gloo = dist.get_backend(group) == "gloo"
        self._stream = torch.cuda.Stream() if cuda and not gloo else None
        self._staged = cuda and gloo
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
            self._double(number)

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
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)

    def _serve(self) -> None:
        # A new thread would take as many OpenMP threads as there are cores.
        torch.set_num_threads(1)
        while (number := self._jobs.get()) is not None:
            try:
                self._double(number)
            except Exception as error:  # whatever the network says: `finish` raises it
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)

    def _double(self, number: int) -> None:
        flat, other = self._flat[number]
        if self._staged:
            staged = flat.cpu()
            self._sum(number, staged, torch.empty_like(staged))
            flat.copy_(staged)
            torch.cuda.current_stream(flat.device).synchronize()
        else:
            self._sum(number, flat, other)

    def _sum(self, number: int, flat: Tensor, other: Tensor) -> None:
        """Make `flat` the sum over all processes; what arrives goes through `other`."""
        distance = 1 if flat.numel() else self.world
        while distance < self.world:
            swap(flat, other, self.rank ^ distance, self._group, number)
            flat.add_(other)
            distance *= 2


def swap(mine: Tensor, other: Tensor, peer: int, group: dist.ProcessGroup | None, tag: int) -> None:
    """Give a neighbour `mine`, and have what it gives in `other`; both contiguous."""
    # As bytes: networks do not know every type. To receive stands first: gloo otherwise sends one
    # way after the other, and needs twice the time on a slow link.
    both = [
        dist.P2POp(dist.irecv, other.view(torch.uint8), peer, group, tag),
        dist.P2POp(dist.isend, mine.view(torch.uint8), peer, group, tag),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
