"""A model whose layers are spread over the processes, each of which has a stage of a pipeline.

Several copies of the model may be trained at once, each on as many processes; those of the first
say what all hold. It is told of checkpoints as `Sharding` is, whose tensors each process has a part
of; here a tensor belongs to one process of a copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from host.errors import UsageError
from train.lanes.links import Links
from train.lanes.stages import Stages, hold, is_elsewhere
from train.lanes.state import Slot
from train.lanes.team import Team


class Staging:
    """What this process holds of a model that is cut into stages.

    After it is made, `model.state_dict()` and `optimizer.state_dict()` give all tensors on the
    main process, and must be asked for by all of them together; the others get none. Within `apart`
    each gets what it holds.

    Args:
        model, optimizer: whole, as they are to be; both are changed in place.
        team: the processes that have the same stage as this one.

    Attributes:
        stage: this process's.
        copy: of the model, which one it works on.
        shards: the parameters that this process holds, by name.

    Raises:
        UsageError: the model cannot be spread so.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, stages: Stages, links: Links, team: Team
    ) -> None:
        self.stages, self.links = stages, links
        self.stage, self.copy = team.number, team.place
        self._apart = False
        _check(model)
        whole = dict(model.named_parameters())
        names = {parameter: name for name, parameter in whole.items()}
        self._kind = next(iter(whole.values())).dtype
        self._trained = [name for name, p in whole.items() if p.requires_grad]
        hold(model, stages, self.stage)
        self.shards = {n: p for n, p in model.named_parameters() if not is_elsewhere(p)}
        # The number of each parameter in the whole optimizer, group by group.
        self._numbers: list[list[int]] = []
        number = 0
        self._groups: list[list[int]] = []
        for group in optimizer.param_groups:
            every = [names[parameter] for parameter in group["params"]]
            numbers = range(number, number + len(every))
            number += len(every)
            mine = [n for n, name in zip(numbers, every, strict=True) if name in self.shards]
            self._numbers.append(mine)
            self._groups.append(list(numbers))
            for name, parameter in zip(every, group["params"], strict=True):
                if name not in self.shards:
                    optimizer.state.pop(parameter, None)
            group["params"] = [self.shards[name] for name in every if name in self.shards]
        model.register_state_dict_post_hook(partial(self._whole_model))  # torch marks what it gets
        optimizer.register_state_dict_post_hook(self._whole_optimizer)

    def mine(self, _slot: Slot, value: Tensor) -> Tensor:
        """What this process holds of a value for one of its own parameters or buffers."""
        return value

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Have state dicts hold within it what this process has: nobody waits for another."""
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients, so that the norm of all is `limit` at most.

        Returns:
            The norm that they had, to the bits of one process: of each tensor, then of these.
        """
        gradients = {name: p.grad for name, p in self.shards.items() if p.grad is not None}
        places = {name: n for n, name in enumerate(self._trained)}
        # Each is one process's, of the first copy: the sum with the others' zeros is exact.
        norms = torch.zeros(len(places), dtype=torch.float64, device=self.links.device)
        if gradients and self.copy == 0:
            mine = list(gradients.values())
            if mine[0].is_cuda:
                found = list(torch._foreach_norm(mine, 2.0))
            else:
                found = [torch.linalg.vector_norm(gradient, 2.0) for gradient in mine]
            norms[[places[name] for name in gradients]] = torch.stack(found).double()
        dist.all_reduce(norms)
        total: Tensor = torch.linalg.vector_norm(norms.to(self._kind), 2.0)
        if gradients:
            torch.nn.utils.clip_grads_with_norm_(self.shards.values(), limit, total)
        return total

    def _whole_model(
        self, _model: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        for name in list(state):
            owner = self.stages.owners[name.removeprefix(prefix)]
            if self._apart or self.copy:
                if owner != self.stage or self.copy:
                    del state[name]
            else:
                found = self._main(state[name], owner)
                if found is None:
                    del state[name]
                else:
                    state[name] = found

    def _whole_optimizer(self, _optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        numbers = [number for group in self._numbers for number in group]
        mine = {numbers[n]: dict(kept) for n, kept in state["state"].items()}
        groups = [
            group | {"params": every}
            for group, every in zip(state["param_groups"], self._groups, strict=True)
        ]
        if self.stage or self.copy:  # counts of steps, which the main process has as well
            groups = [
                {name: value for name, value in group.items() if not isinstance(value, Tensor)}
                for group in groups
            ]
        if not self._apart:
            mine = self._all(mine)
        return state | {"state": mine, "param_groups": groups}

    def _all(self, mine: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """What all processes keep of their parameters, on the main one; nothing on the others."""
        if self.copy:
            return {}
        if self.stage:
            for number, kept in mine.items():
                self.links.put((number, list(kept)), [v.cpu() for v in kept.values()], 0)
            self.links.put(None, [], 0)
            self.links.settle()
            return {}
        found = dict(mine)
        for other in range(1, self.stages.count):
            while (said := self.links.get(other))[0] is not None:
                (number, slots), values = said
                found[number] = dict(zip(slots, values, strict=True))
        return {number: found[number] for number in sorted(found)}

    def _main(self, tensor: Tensor, owner: int) -> Tensor | None:
        """A tensor of `owner` on the main process, in the host's memory."""
        if owner == 0:
            return tensor.cpu() if self.stage == 0 else None
        if self.stage == owner:
            self.links.put(None, [tensor], 0)
            self.links.settle()
        elif self.stage == 0:
            return self.links.get(owner)[1][0].cpu()
        return None


def _check(model: nn.Module) -> None:
    """The model's state dict names its tensors as it holds them.

    Raises:
        UsageError: naming one that it does not.
    """
    held: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        if name not in held or tensor.data_ptr() != held[name].data_ptr():
            raise UsageError(
                f"the model's state_dict has a {name} that it makes itself, and each process has"
                " some layers",
                "train it whole: leave STAGES out",
            )
    kinds = {parameter.dtype for parameter in model.parameters()}
    if len(kinds) > 1:
        raise UsageError(
            f"the model has weights of several types ({', '.join(sorted(map(str, kinds)))}), whose"
            " gradient's norm stages would add up in another order",
            "train it whole: leave STAGES out",
        )
