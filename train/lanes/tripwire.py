"""Finds a process whose weights are not those of the others any more: bad memory, a bad GPU.

Every process is meant to hold the same bits after each update. One that strays would go on
training something else unnoticed, and spoil all that is saved.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from host.errors import HostError
from train.lanes.runtime import Runtime
from train.lanes.stages import is_elsewhere
from train.lanes.state import slots


class Tripwire:
    """Compares weights and optimizer state across processes.

    Among three or more a majority tells who strayed. Of two, each also looks whether its weights
    are before an update what they were after the last one.

    Args:
        others: what else is to be equal, by name.
        buffers: whether the model's buffers are meant to be equal as well (under DDP
            they are the main process's after each step).
        watch: whether each of two processes looks at its own weights before every update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        runtime: Runtime,
        others: Mapping[str, Tensor],
        *,
        buffers: bool,
        watch: bool,
    ) -> None:
        self.model, self.optimizer, self.runtime, self.buffers = model, optimizer, runtime, buffers
        self.others = dict(others)
        team = runtime.team
        # A model in stages has others to compare each with.
        self._group = runtime.control if len(team.every) == 1 else team.group(backend="gloo")
        self._weights = []
        if watch and team.size == 2:
            here = (p.detach() for p in model.parameters() if not is_elsewhere(p))
            self._weights = [weight for weight in here if weight.numel()]
        self._seal: Tensor | None = None
        # The first step before whose update the weights had changed by themselves; 0: none.
        self._changed = torch.zeros((), dtype=torch.int64, device=runtime.device)

    def before_update(self, step: int) -> None:
        """Note, without waiting for the device, whether the weights changed by themselves."""
        if self._seal is not None:
            differs = (digests(self._weights) != self._seal).any()
            self._changed = torch.where((self._changed == 0) & differs, step + 1, self._changed)

    def astray(self, step: int) -> bool:
        """Whether this process's own weights changed by themselves; asked without the others."""
        self.before_update(step)
        return bool(self._changed)

    def after_update(self) -> None:
        """Remember the weights' digests."""
        if self._weights:
            self._seal = digests(self._weights)

    def check(self, step: int) -> None:
        """Compare what the processes hold after `step` updates. All must call this together.

        Raises:
            HostError: on every process, naming those that differ and the first tensor that does.
        """
        team = self.runtime.team
        # Of a model in stages, those that hold another one see nothing of it.
        with self.runtime.together() if len(team.every) > 1 else nullcontext():
            self._compare(step, team.ranks)

    def _compare(self, step: int, ranks: list[int]) -> None:
        self.before_update(step)
        tensors = self._tensors()
        # A stage may have nothing at all.
        held = [digests(tensors.values(), self.runtime.device)] if tensors else []
        mine = torch.cat([*held, self._changed[None]]).cpu()
        every = [torch.empty_like(mine) for _ in ranks]
        with self.runtime.pulse.together("the comparison of weights"):
            dist.all_gather(every, mine, group=self._group)
        rows, changed = [tuple(row[:-1].tolist()) for row in every], [int(row[-1]) for row in every]
        usual, votes = Counter(rows).most_common(1)[0]
        if votes == len(rows):
            return
        others = "the others"
        astray = [rank for rank, row in zip(ranks, rows, strict=True) if row != usual]
        if 2 * votes <= len(rows):  # no majority
            if sum(map(bool, changed)) == 1:
                astray = [rank for rank, at in zip(ranks, changed, strict=True) if at]
            else:
                others = f"process {ranks[rows.index(usual)]}, or that one from it,"
        columns = zip(tensors, *rows, strict=True)
        tensor = next(name for name, *values in columns if len(set(values)) > 1)
        if step == 0:
            raise HostError(
                f"process {' and '.join(map(str, astray))} begins with another {tensor} than"
                f" {others}",
                "draw initial weights from torch's generator, which is seeded alike everywhere",
            )
        raise HostError(
            f"process {' and '.join(map(str, astray))} strayed from {others} by step {step}, first"
            f" in {tensor}: their bits should be equal",
            "suspect that process's memory or GPU, or a model that computes by what it is told"
            " elsewhere (rank, host, clock); add --resume to go on from the last checkpoint, on"
            " which all agreed",
        )

    def _tensors(self) -> dict[str, Tensor]:
        """All that should be equal, by name and in the order of names."""
        every = self.model.named_parameters()
        tensors: dict[str, Tensor] = {name: p for name, p in every if not is_elsewhere(p)}
        if self.buffers:
            here = (slot for slot in slots(self.model) if not is_elsewhere(slot.first))
            places = ((slot.name, slot.now) for slot in here)
            tensors |= {name: tensor for name, tensor in places if tensor is not None}
        names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        for parameter, held in self.optimizer.state.items():
            for kind, value in held.items():
                if isinstance(value, Tensor):
                    tensors[f"{names[parameter]}'s {kind}"] = value
        tensors |= self.others
        # An optimizer's state stands in the order in which it was made or loaded.
        return {name: tensors[name].detach() for name in sorted(tensors) if tensors[name].numel()}


def digests(tensors: Iterable[Tensor], device: torch.device | None = None) -> Tensor:
    """The exclusive or of each tensor's elements' bits, int64: one flipped bit changes it.

    Args:
        device: where those are looked at that are elsewhere, one after another.
    """
    plain = (torch.view_as_real(t) if t.is_complex() else t for t in tensors)
    near = (t if device is None else t.to(device) for t in plain)
    return torch.stack([torch.hash_tensor(t).view(torch.int64) for t in near])
