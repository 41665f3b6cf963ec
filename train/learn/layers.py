"""A model's layers in their order, for a learning rate that falls towards its input."""

from collections.abc import Iterator

from torch import nn


def depths(model: nn.Module) -> dict[str, int]:
    """How many layers lie between each parameter and the output: 0 for the head; by name.

    timm's models say themselves what their layers are. Of others a layer is a block of a stack of
    blocks (a residual block, an encoder's layer), or outside of such a stack a module with matrices
    or kernels; what has only vectors, such as a norm, belongs to the layer before it. Parameters
    that belong to no layer (a class token, positions) go with the first.
    """
    numbers: dict[str, int] = {}
    if hasattr(model, "group_matcher"):
        from timm.models._manipulate import group_with_matcher

        matcher = model.group_matcher(coarse=False)  # type: ignore[operator]
        numbers = group_with_matcher(model.named_parameters(), matcher, reverse=True)
    else:
        number = -1
        for prefix, module in _layers(model, ""):
            own = [name for name, _ in module.named_parameters(prefix) if name not in numbers]
            if own:
                number += number < 0 or any(p.ndim > 1 for p in module.parameters())
                numbers |= dict.fromkeys(own, number)
    last = max(numbers.values(), default=0)
    return {name: last - numbers.get(name, 0) for name, _ in model.named_parameters()}


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules under it that are layers, with their names."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if type(child) in (nn.Sequential, nn.ModuleList) or _stacks(child):
            yield from _layers(child, path)
        else:
            yield path, child


def _stacks(module: nn.Module) -> bool:
    """Whether blocks of one kind, with two matrices or kernels or more each, are stacked in it."""
    for each in module.modules():
        if isinstance(each, (nn.Sequential, nn.ModuleList)):
            kinds = [type(child) for child in each.children() if _matrices(child) > 1]
            if len(kinds) > 1 and len({*kinds}) == 1:
                return True
    return False


def _matrices(module: nn.Module) -> int:
    return sum(p.ndim > 1 for p in module.parameters())
