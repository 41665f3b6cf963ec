"""From a model's name to a module: a few small nets of our own, or one of torchvision's."""

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.parameter import is_lazy

from host import dotted, regular
from host.errors import LockstepError, UsageError
from train.config import Model
from train.lanes.state import slots
from train.learn import registry
from train.learn.freezing import freeze
from train.learn.weights import put, shapes, unpack

Shape = registry.Shape


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def convnet(classes: int, shape: Shape) -> nn.Module:
    """Four 3×3 convolutions with batch norm and one pooling: for pictures of 8 to 32 pixels."""
    return nn.Sequential(
        *_block(shape[0], 32),
        *_block(32, 32),
        nn.MaxPool2d(2),
        *_block(32, 64),
        *_block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def smallnet(classes: int, shape: Shape) -> nn.Module:
    """Three 3×3 convolutions, two of them pooled before batch norm: quick, for 16 to 64 pixels."""
    pooled = (
        layer
        for inputs, outputs in ((shape[0], 32), (32, 64))
        for layer in (
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )
    )
    return nn.Sequential(
        *pooled, *_block(64, 96), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(384, classes)
    )


def dropnet(classes: int, shape: Shape) -> nn.Module:
    """AlexNet's plan at the size of digits: convolutions, then wide layers behind dropout."""
    flat = 64 * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(flat, 128),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def mlp(classes: int, shape: Shape) -> nn.Module:
    """One hidden layer on the pixels: the quickest thing that learns."""
    pixels = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(inplace=True), nn.Linear(128, classes)
    )


OURS: dict[str, Callable[[int, Shape], nn.Module]] = {
    "convnet": convnet,
    "smallnet": smallnet,
    "dropnet": dropnet,
    "mlp": mlp,
}


def build(config: Model, classes: int, shape: Shape) -> nn.Module:
    """The model that `config` names, for images of `shape` (C, H, W), on the CPU.

    Raises:
        UsageError: no such model, or it has no such stem or weights, or cannot be built.
    """
    model = _made(config, classes, shape)
    if config.file is not None:
        _load(model, config.file, config.prefix or "")
    if config.channels_last:
        if not any(p.ndim == 4 for p in model.parameters()):
            raise UsageError(
                f"{config.name} has no convolutions, so model.channels_last does nothing",
                "take it away",
            )
        model = model.to(memory_format=torch.channels_last)
    freeze(model, config.freeze)
    # All of it, as after an evaluation: what a constructor left in another mode would come out of
    # the first one in this.
    model.train()
    return model


def _made(config: Model, classes: int, shape: Shape) -> nn.Module:
    own = dotted.is_path(config.name)
    if own or config.name in OURS:
        if config.stem != "standard":
            raise UsageError(f"{config.name} has one stem only", "drop --model.stem")
        if config.weights is not None and config.file is None:
            raise UsageError(
                f"{config.name} has no weights named {config.weights!r}",
                "name a file that ends in .safetensors",
            )
        function = dotted.load("model.name", config.name) if own else OURS[config.name]
        model = _called(function, config.name, classes, shape)
    else:
        model = registry.build(config, classes, shape, OURS)
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


def _common_prefix(given: Collection[str], own: Collection[str]) -> str:
    """What all the names begin with before one of the model's; '' where there is no such."""
    first = min(given, default="")
    endings = [name for name in own if first.endswith(f".{name}")]
    prefix = first.removesuffix(max(endings, key=len)) if endings and first not in own else ""
    return prefix if all(name.startswith(prefix) for name in given) else ""


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
            f"{name} cannot be built for {shape[2]}×{shape[1]} images, {type(error).__name__}:"
            f" {said}",
            dotted.fix(error),
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{name} returned {type(model).__name__}",
            "return an nn.Module: it is called with the number of classes, and (C, H, W)",
        )
    return model


def _load(model: nn.Module, path: Path, prefix: str) -> None:
    try:
        given, versions = unpack(regular.read(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(f"cannot read weights {path}: {error}", "name a whole file") from error
    own = model.state_dict()
    wrapped = _common_prefix(given, own)
    if wrapped != prefix:
        begin = f"all begin with {wrapped}" if wrapped else f"do not all begin with {prefix}"
        fix = f"add --model.prefix {wrapped}" if wrapped else "take model.prefix away"
        raise UsageError(f"the names in weights {path} {begin}", fix)
    given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    if versions is not None:
        versions = {f"{n}.".removeprefix(prefix).rstrip("."): v for n, v in versions.items()}
    strange = sorted(set(given) ^ set(own)) or [
        name for name in own if own[name].is_floating_point() != given[name].is_floating_point()
    ]
    # The head may differ: other data, other classes. Anything else is another model.
    unlike = [n for n in own if n not in strange and own[n].shape != given[n].shape]
    if strange or len({n.rsplit(".", 1)[0] for n in unlike}) > 1:
        raise UsageError(
            f"weights {path} are of another model ({(strange or unlike)[0]} does not fit)",
            "use the model.name and model.stem they were trained with",
        )
    put(model, {n: own[n] if n in unlike else given[n] for n in own}, versions)


def taken(config: Model, model: nn.Module) -> str | None:
    """What of its weights' file the model has, in a line; None where it started from none.

    Args:
        model: as `build` made it, trained or not.
    """
    if config.file is None:
        return None
    prefix, there = config.prefix or "", shapes(config.file)
    here = model.state_dict()
    anew = [name for name, t in here.items() if there.get(prefix + name) != [*t.shape]]
    said = f"weights: {len(here) - len(anew)} of {len(here)} tensors from {config.file}"
    sizes = ((name, _sized(here[name].shape), _sized(there[prefix + name])) for name in anew)
    each = ", ".join(f"{name} ({now}, there {was})" for name, now, was in sizes)
    return f"{said}; made anew: {each}" if anew else said


def _sized(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "one number"
