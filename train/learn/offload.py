"""What an optimizer keeps of each weight, in the host's memory between its updates.

A GPU holds it while weights are updated, when the activations of a step are gone. The arithmetic is
the same, and so are the bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def offload(optimizer: Optimizer) -> None:
    """Have the optimizer's state leave the device after each update, and come back for the next."""
    optimizer.register_step_pre_hook(_fetch)
    optimizer.register_step_post_hook(_leave)
    optimizer.register_load_state_dict_post_hook(_leave)  # torch loads it to where the weights are


def _fetch(optimizer: Optimizer, *_given: Any) -> None:
    for parameter, kept in optimizer.state.items():
        for slot in _large(kept):
            kept[slot] = kept[slot].to(parameter.device, non_blocking=True)


def _leave(optimizer: Optimizer, *_given: Any) -> None:
    for kept in optimizer.state.values():
        for slot in _large(kept):
            there = kept[slot]
            if there.is_cuda:
                # Of pinned memory, which a GPU writes to by itself.
                here = torch.empty_like(there, device="cpu", pin_memory=True)
                kept[slot] = here.copy_(there, non_blocking=True)
    if torch.cuda.is_initialized():
        # Who saves it reads it at once.
        torch.cuda.current_stream().synchronize()


def _large(kept: dict[str, Any]) -> list[str]:
    """All but the count of steps, which is the host's anyway."""
    return [slot for slot, value in kept.items() if isinstance(value, Tensor) and slot != "step"]
