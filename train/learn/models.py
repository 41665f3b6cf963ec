"""From a model's name to a module: small nets of our own, a library's, or the user's."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from host import dotted
from host.errors import LockstepError, UsageError
from train.config import Model
from train.lanes.state import slots
from train.learn import depth, pretrained, registry, timm_models
from train.learn.freezing import freeze
from train.learn.nets import OURS

Shape = registry.Shape


def build(config: Model, classes: int, shape: Shape) -> nn.Module:
    """The model that `config` names, for images of `shape` (C, H, W), on the CPU.

    Raises:
        UsageError: no such model, or it has no such stem or weights, or cannot be built.
    """
    model = _made(config, classes, shape)
    pretrained.load(model, config)
    if config.channels_last:
        if not any(p.ndim == 4 for p in model.parameters()):
            raise UsageError(
                f"{config.name} has no convolutions, so model.channels_last does nothing",
                "take it away",
            )
        model = model.to(memory_format=torch.channels_last)
    begun = dict(registry.made_anew(model, config)) if _published(config) else {}
    for name, layer in itertools.product(config.freeze, begun):
        if f"{layer}.".startswith(f"{name}.") or name.startswith(f"{layer}."):
            raise UsageError(
                f"model.freeze names {name}, and {layer} begins with random weights"
                f" ({begun[layer]})",
                "freeze other parts, or take the published form of that layer",
            )
    freeze(model, config.freeze)
    # All of it, as after an evaluation: what a constructor left in another mode would come out of
    # the first one in this.
    model.train()
    return model


def published(config: Model, model: nn.Module) -> Iterator[str]:
    """What a model of torchvision has of its published weights, and what began anew."""
    if _published(config):
        begun = [f"{name} ({why})" for name, why in registry.made_anew(model, config)]
        anew = f"; begun anew: {', '.join(begun)}" if begun else ""
        yield f"weights: {config.weights} of {config.name}{anew}"


def _published(config: Model) -> bool:
    """Whether torchvision's own weights are asked for."""
    named = config.weights is not None and config.file is None and config.hub_id is None
    return named and config.in_timm is None


def has_small_stem(config: Model, model: nn.Module) -> bool:
    """Whether `model.stem: small` would make it smaller: of torchvision's models alone."""
    other = dotted.is_path(config.name) or config.name in OURS or config.in_timm is not None
    return not other and registry.has_small_stem(model)


def _made(config: Model, classes: int, shape: Shape) -> nn.Module:
    own = dotted.is_path(config.name)
    if own or config.name in OURS:
        if config.stem != "standard":
            raise UsageError(f"{config.name} has one stem only", "set --model.stem standard")
        if config.weights is not None and config.file is None and config.hub_id is None:
            raise UsageError(
                f"{config.name} has no weights named {config.weights!r}",
                "name a file that ends in .safetensors, or a hub id",
            )
        function = dotted.load("model.name", config.name) if own else OURS[config.name]
        model = _called(function, config.name, classes, shape)
    elif config.in_timm is not None:
        model = timm_models.build(config, config.in_timm, classes, shape)
        registry.exact_pooling(model)
    else:
        model = registry.build(config, classes, shape, OURS)
        registry.exact_pooling(model)
    if config.in_timm is None:  # which does it by itself
        depth.leave_out(model, config.name, config.drop_path)
    # Lazy modules take their sizes from a blank image: an optimizer needs them.
    if any(map(is_lazy, itertools.chain(model.parameters(), model.buffers()))):
        _shaped(model, config.name, shape)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            # An expanded one (meshgrid makes them) could not be copied into.
            if buffer is None or buffer.layout is not torch.strided:
                continue
            if torch._debug_has_internal_overlap(buffer) == 1:
                module._buffers[name] = buffer.contiguous()
    slots(model)  # refuses what shares memory, which a device would part
    return model


def _shaped(model: nn.Module, name: str, shape: Shape) -> None:
    """Pass blank images through, for lazy modules to take their sizes from."""
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(2, *shape))
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # whatever a model raises
        if "memory" in str(error):
            raise
        raise UsageError(
            f"{name} cannot take {shape[2]}×{shape[1]} images: {error or type(error).__name__}",
            "use a larger --data.size, or a smaller model",
        ) from error


def _called(
    function: Callable[[int, Shape], nn.Module], name: str, classes: int, shape: Shape
) -> nn.Module:
    try:
        model = function(classes, shape)
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # whatever a model raises
        if "memory" in str(error):
            raise
        said = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"{name} cannot be built: {type(error).__name__}: {said}; it is called with {classes},"
            f" the number of classes, and {tuple(shape)}, an image's (C, H, W)",
            dotted.fix(error),
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{name} returned {type(model).__name__}",
            "return an nn.Module: it is called with the number of classes, and (C, H, W)",
        )
    return model
