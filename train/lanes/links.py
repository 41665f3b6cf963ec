"""What the stages of a pipeline send to each other: values with tensors among them."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.lanes.crossing import sent
from train.lanes.exchange import through_host
from train.lanes.packing import pack, unpack


@dataclass
class Links:
    """One process's links to others of its training.

    What is sent goes on its way while the process computes on, so much of it that nobody waits for
    somebody who waits; `settle` waits for all of it.

    Attributes:
        most: how many values may be on their way to a process.
        control: a CPU process group, for what is not tensors.
        forward, backward: groups for tensors that go to a later stage, and to an earlier one: over
            NCCL a group is a queue, and one for both would wait for itself.
    """

    device: torch.device
    most: int
    control: dist.ProcessGroup
    forward: dist.ProcessGroup
    backward: dist.ProcessGroup
    _going: dict[int, deque[list[tuple[Any, Tensor]]]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def put(self, what: Any, tensors: list[Tensor], to: int) -> None:
        """Send a value as `packing` takes it, and tensors beside it, to a process."""
        laid = [sent(tensor) for tensor in tensors]
        about = [(tuple(t.shape), t.stride(), t.dtype) for t in laid]
        said = torch.frombuffer(bytearray(pack((what, about))), dtype=torch.uint8)
        going = self._going[to]
        while len(going) > self.most:
            _wait(going.popleft())
        size = torch.tensor([len(said)])
        works = [self._send(each, to, self.control) for each in (size, said)]
        wires = [self._wire(_flat(tensor)) for tensor in laid if tensor.numel()]
        works += [self._send(wire, to, self._way(to)) for wire in wires]
        going.append(works)

    def get(self, source: int) -> tuple[Any, list[Tensor]]:
        """The next value that a process has sent, and the tensors beside it."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, group=self.control)
        said = torch.zeros(int(size), dtype=torch.uint8)
        dist.recv(said, source, group=self.control)
        what, about = unpack(said.numpy().tobytes())
        found = []
        for shape, stride, kind in about:
            tensor = torch.empty_strided(shape, stride, dtype=kind, device=self.device)
            if tensor.numel():
                flat = _flat(tensor)
                wire = self._wire(flat)
                dist.recv(wire, source, group=self._way(source, here=True))
                if wire is not flat:
                    flat.copy_(wire)
            found.append(tensor)
        return what, found

    def settle(self) -> None:
        """Wait until all that was sent has arrived."""
        for going in self._going.values():
            while going:
                _wait(going.popleft())

    def _send(self, tensor: Tensor, to: int, group: dist.ProcessGroup) -> tuple[Any, Tensor]:
        return dist.isend(tensor, to, group=group), tensor

    def _way(self, other: int, *, here: bool = False) -> dist.ProcessGroup:
        later = other > dist.get_rank()
        return self.forward if later != here else self.backward

    def _wire(self, flat: Tensor) -> Tensor:
        """The same in the memory that the group can send from."""
        return flat.cpu() if through_host(flat, self.forward) else flat


def linked(device: torch.device, patience: timedelta, stages: int) -> Links:
    """Links of this process. All processes ask for theirs together.

    Args:
        patience: how long it waits for another.
        stages: of a model, whose first one is that many lanes before its last one.
    """
    groups: list[Any] = [
        dist.new_group(backend=backend, timeout=patience) for backend in ("gloo", None, None)
    ]
    return Links(device, stages + 1, *groups)


def _wait(works: list[tuple[Any, Tensor]]) -> None:
    for work, _ in works:
        work.wait()


def _flat(tensor: Tensor) -> Tensor:
    """The memory of a tensor without gaps, in the order in which it lies there, as bytes: NCCL does
    not know all types.
    """
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)
