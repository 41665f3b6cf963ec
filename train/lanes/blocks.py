"""The blocks of a model whose weights are gathered one at a time where they are sharded."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from host.errors import UsageError

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""What holds modules, and does nothing else: of what derives from one it is not known."""
_BARE = (nn.ParameterList, nn.ParameterDict)  # have no forward pass to be gathered for
# Elements below which a block is not gathered by itself, but with what is around it.
_SMALL = 10_000


def units(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks that are gathered one at a time, in their order: the members of sequences and
    lists, and what has none inside, where they are large enough. The rest is gathered as one.
    """
    member = type(model) in LISTS
    for module in model.children():
        # What derives from a list may do with its members what it likes.
        is_list = type(module) in LISTS
        has_list = any(type(inner) in LISTS for inner in module.modules())
        if is_list or (has_list and not member):
            yield from units(module)
        elif not isinstance(module, _BARE) and _size(module.parameters()) >= _SMALL:
            yield module


def _size(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def check(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Each parameter belongs to one block, and can be cut along its first dimension.

    Raises:
        UsageError: naming one that does not, or cannot.
    """
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
    for owner, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(
                f"{owner or 'the model'} is a scripted module, which cannot be sharded",
                "use the module that it was scripted from, or leave ACCELERATE=fsdp out",
            )
    for place in {*inside.values(), -1}:
        mine = {p.dtype for p in model.parameters() if places[id(p)] == place}
        if len(mine) > 1:
            raise UsageError(
                f"a block of the model has weights of several types ({', '.join(map(str, mine))}),"
                " which cannot be gathered together",
                "have one type in each, or leave ACCELERATE=fsdp out",
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
