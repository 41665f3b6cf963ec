"""A model whose weights, gradients and optimizer state are spread over the processes.

The engine is torch's `fully_shard` (FSDP2): each process holds a part of each tensor, and has a
block's whole tensors only while it computes with them. What is ours is the sum at lockstep: each
block's gradients are halved and exchanged with neighbours, nearest first, which are the additions
of the lanes' tree, so that a run ends in the bits of one process that holds everything.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from train.lanes.blocks import check, units
from train.lanes.gathering import (
    Agreement,
    Gather,
    PlainReduceScatter,
    Silence,
    TreeReduceScatter,
    gather_into,
)
from train.lanes.state import Slot, held


class Sharding:
    """The shards of a model that this process holds, and the whole tensors they are parts of.

    After it is made, `model.state_dict()` and `optimizer.state_dict()` give whole tensors on the
    main process, and must be asked for by all of them together; the others get empty ones. Within
    `apart` each gets what it holds.

    Args:
        model, optimizer: whole, as they are to be; both are changed in place, and the optimizer
            moves shards from now on.
        control: a CPU process group for small decisions.
        exact: whether sums are those of the lanes' tree, as against the network library's.
        again: whether a block's whole weights are given back after its forward pass, and gathered
            again for its backward pass.

    Attributes:
        parameters: as the model has them between passes, by name; one of several names by each.
        silence: to be on while this process computes a lane without samples.
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
        control: dist.ProcessGroup,
        exact: bool = True,
        again: bool = True,
    ) -> None:
        # A second of imports.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self.rank, self.world, self._exact = rank, world, exact
        self._apart = False
        self.silence = Silence()
        whole = dict(model.named_parameters())
        device = next(iter(whole.values())).device
        blocks = list(units(model))
        check(model, blocks)
        mesh = init_device_mesh(device.type, (world,))
        for module in (*blocks, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=again)
        agreement = Agreement(control)
        model.register_forward_pre_hook(agreement.begin, prepend=True)
        model.register_forward_hook(agreement.end)
        for number, module in enumerate(model.modules()):
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                comm: Any = Gather(number, agreement)  # theirs by its methods
                module.set_custom_all_gather(comm)
                comm = PlainReduceScatter()
                if exact:
                    comm = TreeReduceScatter(rank, world, self.silence)
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

    def mine(self, slot: Slot, value: Tensor) -> Tensor:
        """What this process holds of a value for a parameter or a buffer."""
        return self.part(value) if slot.is_parameter else value

    def whole(self, part: Tensor, name: str) -> Tensor:
        """What is as large as parameter `name`, from all processes' parts of it; asked together."""
        of = self.parameters[name]  # a tied one has several names, and its shard the first
        shape = of.shape
        part = part.to(of.device)  # the optimizer's may be in the host's memory
        rows = -(-shape[0] // self.world)  # of each part but those at the end
        mine = part.new_zeros(rows, *shape[1:])
        mine[: len(part)] = part
        every = part.new_empty(rows * self.world, *shape[1:])
        gather_into(every, mine)
        return every if len(every) == shape[0] else every[: shape[0]].clone()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Have state dicts hold parts within it, and what no process has a part of on the main one
        alone: nobody waits for another.
        """
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    def clip(self, limit: float) -> Tensor:
        """Scale the shards' gradients, so that the norm of all is `limit` at most.

        Returns:
            The norm that they had; at lockstep to the bits of one process: of each whole tensor,
            then of these.
        """
        if not self._exact:
            return self._clip_parts(limit)
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

    def _clip_parts(self, limit: float) -> Tensor:
        gradients = [shard.grad for shard in self.shards.values() if shard.grad is not None]
        squares = torch.stack(torch._foreach_norm(gradients, 2.0)).square().sum()
        dist.all_reduce(squares)
        total: Tensor = squares.sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.shards.values(), limit, total)
        return total

    def trained(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """What has gradients: each parameter as the model has it, and this process's part."""
        pairs = ((self.parameters[name], shard) for name, shard in self.shards.items())
        return [(whole, shard) for whole, shard in pairs if shard.requires_grad]

    def _move(self, optimizer: Optimizer, names: dict[Tensor, str]) -> None:
        """Have the optimizer move the shards, with its part of the state that it has."""
        for parameter in list(optimizer.state):
            kept = optimizer.state.pop(parameter)  # one by one: all are as large as the weights
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
                part = held(state[name]).detach()
                state[name] = part if self._apart else self._main(self.whole(part, own))
            elif self._apart and self.rank:
                del state[name]

    def _whole_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        names = {shard: name for name, shard in self.shards.items()}
        # Loaded state stands in an order of its own on each process, and all must gather in one.
        order = [shard for group in optimizer.param_groups for shard in group["params"]]
        found: dict[int, dict[str, Any]] = {}
        for number, kept in sorted(state["state"].items()):
            shard = order[number]
            found[number] = {
                slot: value
                if self._apart or not _is_like(value, shard)
                else self._main(self.whole(value, names[shard]))
                for slot, value in sorted(kept.items())
                if _is_like(value, shard) or not (self._apart and self.rank)
            }
        groups = state["param_groups"]
        if self._apart and self.rank:  # counts of steps, which the main process has as well
            groups = [
                {name: value for name, value in group.items() if not isinstance(value, Tensor)}
                for group in groups
            ]
        return state | {"state": found, "param_groups": groups}

    def _main(self, whole: Tensor) -> Tensor:
        """On the main process, in the host's memory; the others keep nothing."""
        return whole.cpu() if self.rank == 0 else whole.new_empty(0)


def _is_like(value: Any, parameter: Tensor) -> bool:
    """Whether it is a value for each element of a parameter, as against one for all of it."""
    return isinstance(value, Tensor) and value.shape == parameter.shape
