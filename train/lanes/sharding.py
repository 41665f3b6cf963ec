"""A model whose weights, gradients and optimizer state are spread over the processes.

The engine is torch's `fully_shard` (FSDP2): each process holds a part of each tensor, and has a
block's whole tensors only while it computes with them. What is ours is the sum: each block's
gradients are halved and exchanged with neighbours, nearest first, which are the additions of the
lanes' tree, so that a run ends in the bits of one process that holds everything.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from host.errors import UsageError
from train.lanes.exchange import swap
from train.lanes.state import held

# Elements below which a block is not gathered by itself, but with what is around it.
_SMALL = 10_000


class Sharding:
    """The shards of a model that this process holds, and the whole tensors they are parts of.

    After it is made, `model.state_dict()` and `optimizer.state_dict()` give whole tensors on the
    main process, and must be asked for by all of them together; the others get empty ones.

    Args:
        model, optimizer: whole, as they are to be; both are changed in place, and the optimizer
            moves shards from now on.
        exact: whether sums are to be those of the lanes' tree.
        again: whether a block's whole weights are given back after its forward pass, and gathered
            again for its backward pass.

    Attributes:
        parameters: as the model has them between passes, by name; one of several names by each.
        shards: what this process holds of them, each once, which is what the optimizer moves.

    Raises:
        UsageError: the model cannot be cut so.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        rank: int,
        world: int,
        exact: bool,
        again: bool = True,
    ) -> None:
        # A second of imports.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self.rank, self.world = rank, world
        whole = dict(model.named_parameters())
        device = next(iter(whole.values())).device
        blocks = list(units(model))
        _check(model, blocks)
        mesh = init_device_mesh(device.type, (world,))
        for module in (*blocks, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=again)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                if exact:
                    comm: Any = TreeReduceScatter(rank, world)  # by its methods
                    module.set_custom_reduce_scatter(comm)
        root: Any = model
        root.set_reduce_scatter_unused_params(True)
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.shards = {
            name: nn.Parameter(held(parameter).detach(), requires_grad=parameter.requires_grad)
            for name, parameter in model.named_parameters()
        }
        self._move(optimizer, {p: name for name, p in whole.items()})
        model.register_state_dict_post_hook(partial(self._whole_model))  # torch marks what it gets
        optimizer.register_state_dict_post_hook(self._whole_optimizer)

    def part(self, whole: Tensor) -> Tensor:
        """What this process holds of a parameter's whole tensor, in memory of its own."""
        parts = whole.chunk(self.world)
        mine = parts[self.rank] if self.rank < len(parts) else whole[:0]
        return mine.detach().clone()

    def whole(self, part: Tensor, name: str) -> Tensor:
        """What is as large as parameter `name`, from all processes' parts of it; asked together."""
        from torch.distributed.tensor import DTensor

        like: Any = self.parameters[name]
        spread = DTensor.from_local(
            part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        )
        full: Tensor = spread.full_tensor()
        return full

    def clip(self, limit: float) -> Tensor:
        """Scale the shards' gradients, so that the norm of all is `limit` at most.

        Returns:
            The norm that they had, to the bits of one process: of each whole tensor, then of these.
        """
        shards = {name: shard for name, shard in self.shards.items() if shard.grad is not None}
        norms: list[Tensor] = []
        for name, shard in shards.items():
            assert shard.grad is not None
            gradient = self.whole(shard.grad, name)
            if gradient.is_cuda:
                norms += torch._foreach_norm([gradient], 2.0)
            else:
                norms.append(torch.linalg.vector_norm(gradient, 2.0))
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        torch.nn.utils.clip_grads_with_norm_(shards.values(), limit, total)
        return total

    def _move(self, optimizer: Optimizer, names: dict[Tensor, str]) -> None:
        """Have the optimizer move the shards, with its part of the state that it has."""
        for parameter, kept in list(optimizer.state.items()):
            del optimizer.state[parameter]
            optimizer.state[self.shards[names[parameter]]] = {
                slot: self.part(value) if _is_like(value, parameter) else value
                for slot, value in kept.items()
            }
        for group in optimizer.param_groups:
            group["params"] = [self.shards[names[parameter]] for parameter in group["params"]]

    def _whole_model(
        self, _model: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: Any
    ) -> None:
        for name in list(state):
            own = name.removeprefix(prefix)
            if own in self.parameters:
                state[name] = self._main(self.whole(held(state[name]).detach(), own))

    def _whole_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        names = {shard: name for name, shard in self.shards.items()}
        # Loaded state stands in an order of its own on each process, and all must gather in one.
        order = [shard for group in optimizer.param_groups for shard in group["params"]]
        return state | {
            "state": {
                number: {
                    slot: self._main(self.whole(value, names[order[number]]))
                    if _is_like(value, order[number])
                    else value
                    for slot, value in sorted(kept.items())
                }
                for number, kept in sorted(state["state"].items())
            }
        }

    def _main(self, whole: Tensor) -> Tensor:
        """On the main process, in the host's memory; the others keep nothing."""
        return whole.cpu() if self.rank == 0 else whole.new_empty(0)


def _is_like(value: Any, parameter: Tensor) -> bool:
    """Whether it is a value for each element of a parameter, as against one for all of it."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


class TreeReduceScatter:
    """Each process's block of the sum over all, in the additions of the lanes' tree.

    Recursive halving: with the neighbour at distance 1, 2, 4, … a process swaps the half that it
    does not keep, and adds what it gets to the half that it keeps. As a + b and b + a are the same
    bits, these are the sums of recursive doubling, of which each process holds one block.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        # Halving leaves process r the block at the place whose bits are r's, the other way round.
        bits = world.bit_length() - 1
        self._places = [int(f"{r:0{bits}b}"[::-1], 2) if bits else 0 for r in range(world)]

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory of a sum and of what goes into it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002  (torch's protocol)
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Fill `output_tensor` with this process's block of the sums of `input_tensor`."""
        blocks = input_tensor.view(self.world, -1)[self._places]
        distance = 1
        while distance < self.world:
            low, high = blocks.chunk(2)
            mine, given = (high, low) if self.rank & distance else (low, high)
            other = torch.empty_like(mine)
            swap(given.view(-1), other.view(-1), self.rank ^ distance, group, 0)
            blocks = mine.add_(other)
            distance *= 2
        output_tensor.copy_(blocks[0])


def units(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks that are gathered one at a time, in their order: the members of sequences and
    lists that are no such things themselves, and large enough. The rest is gathered as one.
    """
    for module in model.children():
        inner = list(module.children())
        if isinstance(module, (nn.Sequential, nn.ModuleList)) or (
            inner and any(isinstance(m, (nn.Sequential, nn.ModuleList)) for m in module.modules())
        ):
            yield from units(module)
        elif not isinstance(module, nn.ModuleDict) and _size(module.parameters()) >= _SMALL:
            yield module


def _size(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def _check(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Each parameter belongs to one block, and can be cut along its first dimension."""
    inside = {id(module): n for n, block in enumerate(blocks) for module in block.modules()}
    places: dict[int, int] = {}
    for owner, module in model.named_modules():
        place = inside.get(id(module), -1)
        for name, parameter in module.named_parameters(owner, recurse=False):
            if places.setdefault(id(parameter), place) != place:
                raise UsageError(
                    f"{name} is shared by two blocks of the model, which are gathered at different"
                    " times",
                    "train it whole: leave ACCELERATE=fsdp out",
                )
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise UsageError(
                f"{name} is a single number, which cannot be cut into parts",
                "give it one dimension: torch.zeros(1)",
            )
        if not parameter.is_contiguous():
            raise UsageError(
                f"{name} is not contiguous (as with model.channels_last), and sharding takes only"
                " tensors that are",
                "drop model.channels_last, or leave ACCELERATE=fsdp out",
            )
