"""What processes tell each other that have a part of each weight: parts, and sums of gradients."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from host.errors import UsageError
from train.lanes.exchange import swap, through_host


class _Memory:
    """Where what is exchanged lies."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory of so many elements."""
        return torch.empty(*size, dtype=dtype, device=device)


class Agreement:
    """That all processes gather the same blocks in a forward pass, in the same order.

    Some models leave blocks out by chance, or by what they see. Then processes would wait for each
    other for ever, or have another block's weights without a word.
    """

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._within = False

    def begin(self, *_of: Any) -> None:
        """Before the model's forward pass."""
        self._within = True

    def end(self, *_of: Any) -> None:
        """After it."""
        self.say(-1)
        self._within = False

    def say(self, number: int) -> None:
        """Compare which block is next; what a backward pass gathers follows from that.

        Raises:
            UsageError: on every process.
        """
        if not self._within:
            return
        mine = torch.tensor([number])
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine, group=self._control)
        if any(int(other) != number for other in every):
            raise UsageError(
                "the processes come to different blocks of the model: it leaves some out by chance,"
                " or by what it sees",
                "train it whole: leave ACCELERATE=fsdp out",
            )


def gather_into(
    every: Tensor, mine: Tensor, group: dist.ProcessGroup | None = None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill `every` with each process's `mine`, in order; to be waited for if `async_op`."""
    every, mine = every.view(-1), mine.view(-1)
    if through_host(mine, group):
        there = torch.empty_like(every, device="cpu")
        dist.all_gather_into_tensor(there, mine.cpu(), group=group)
        every.copy_(there)
        return None
    work: dist.Work | None = dist.all_gather_into_tensor(
        every, mine, group=group, async_op=async_op
    )
    return work


class Gather(_Memory):
    """A block's whole weights, from all processes' parts."""

    def __init__(self, number: int, agreement: Agreement) -> None:
        self.number, self.agreement = number, agreement

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill `output_tensor` with every process's `input_tensor`."""
        self.agreement.say(self.number)
        return gather_into(output_tensor, input_tensor, group, async_op=async_op)


class Silence:
    """Whether this process has no samples just now, and adds nothing to a sum that it takes part
    in.
    """

    on = False


class PlainReduceScatter(_Memory):
    """Each process's block of the sum over all, as the network library adds."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill `output_tensor` with this process's block of the sums of `input_tensor`."""
        if through_host(input_tensor, group):
            block = torch.empty_like(output_tensor, device="cpu")
            dist.reduce_scatter_tensor(block, input_tensor.cpu(), op=op, group=group)
            output_tensor.copy_(block)
            return None
        work: dist.Work | None = dist.reduce_scatter_tensor(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        return work


class TreeReduceScatter(_Memory):
    """Each process's block of the sum over all, in the additions of the lanes' tree.

    Recursive halving: with the neighbour at distance 1, 2, 4, … a process swaps the half that it
    does not keep, and adds what it gets to the half that it keeps. As a + b and b + a are the same
    bits, these are the sums of recursive doubling, of which each process holds one block.
    """

    def __init__(self, rank: int, world: int, silence: Silence) -> None:
        self.rank, self.world, self.silence = rank, world, silence
        # Halving leaves process r the block at the place whose bits are r's, the other way round.
        bits = world.bit_length() - 1
        self._places = [int(f"{r:0{bits}b}"[::-1], 2) if bits else 0 for r in range(world)]

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002  (torch's protocol)
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Fill `output_tensor` with this process's block of the sums of `input_tensor`."""
        if self.silence.on:
            input_tensor.zero_()
        blocks = input_tensor.view(self.world, -1)[self._places]
        if through_host(blocks, group):
            blocks = blocks.cpu()
        distance = 1
        while distance < self.world:
            low, high = blocks.chunk(2)
            mine, given = (high, low) if self.rank & distance else (low, high)
            other = torch.empty_like(mine)
            swap(given.view(-1), other.view(-1), self.rank ^ distance, group, 0)
            blocks = mine.add_(other)
            distance *= 2
        output_tensor.copy_(blocks[0])
