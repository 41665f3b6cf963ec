"""torchvision's models, made to fit: stem, channels, head, and pooling that is deterministic."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from host import dotted
from host.errors import UsageError, nearest
from train.config import Model

Shape = tuple[int, int, int]


class AveragePool(nn.Module):
    """What AdaptiveAvgPool2d computes, [B, C, H, W] → [B, C, *size], as two matrix products.

    The backward pass of that one has no deterministic form on CUDA, except to size 1.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Pool."""
        rows, columns = (_bins(n, m, x) for n, m in zip(x.shape[2:], self.size, strict=True))
        return rows @ x @ columns.T


def _bins(length: int, bins: int, like: Tensor) -> Tensor:
    """[bins, length]: the share of each place in each bin; bins overlap as PyTorch's do."""
    # Made on the device: copying them there would wait for it.
    places = torch.arange(length, device=like.device)[None]
    numbers = torch.arange(bins, device=like.device)[:, None]
    start, stop = numbers * length // bins, -(-(numbers + 1) * length // bins)
    inside = ((places >= start) & (places < stop)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def build(config: Model, classes: int, shape: Shape, ours: Collection[str]) -> nn.Module:
    """The model that `config` names, for images of `shape` (C, H, W).

    Args:
        ours: names of other models, for the error.

    Raises:
        UsageError: no such model, or it has no such stem or weights.
    """
    from torchvision import models as registry  # two seconds of imports that ours need not pay

    known = registry.list_models(module=registry)
    if config.name not in known:
        near = nearest(config.name, [*ours, *known], count=3)
        raise UsageError(
            f"there is no model {config.name}{near}",
            dotted.meant(config.name)
            or f"use one of ours ({', '.join(ours)}), a classification model of torchvision, one of"
            " timm (timm:resnet18), or a function of yours: my_package.nets:build",
        )
    named = None if config.file or config.hub_id else config.weights
    # Two old models have more outputs while they train, unless told otherwise.
    old = config.name in ("googlenet", "inception_v3")
    options = {"aux_logits": False} if old else {}
    try:
        model: nn.Module
        if named is not None:
            model = registry.get_model(config.name, weights=named, **options)
            _new_head(model, classes)
        else:
            options |= {"init_weights": True} if old else {}
            model = registry.get_model(config.name, weights=None, num_classes=classes, **options)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"{config.name} has no weights {named!r}: {error}",
            "use DEFAULT, a .safetensors file or a hub id",
        ) from error
    except OSError as error:
        raise UsageError(
            f"weights {named} of {config.name} cannot be fetched: {error}",
            "check the network, or give a .safetensors file as --model.weights",
        ) from error
    if config.stem == "small":
        _small_stem(model, config.name)
    if shape[0] != 3:
        _channels(model, shape[0])
    return model


def exact_pooling(model: nn.Module) -> None:
    """Pool to sizes above 1 in a way that has a deterministic backward pass."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size not in (1, (1, 1)):
            size = module.output_size
            height, width = size if isinstance(size, tuple) else (size, size)
            assert height is not None  # torchvision gives both sides
            assert width is not None
            model.set_submodule(name, AveragePool((height, width)))


def made_anew(model: nn.Module, config: Model) -> list[tuple[str, str]]:
    """What of published weights a model does without, and why; all of torchvision's know 1,000
    classes and three channels.
    """
    where, first = _first_convolution(model)
    head = next((n, m) for n, m in reversed([*model.named_modules()]) if _outputs(m))
    found = []
    if config.stem == "small":
        found.append((where, "model.stem: small"))
    elif first.in_channels != 3:
        found.append((where, f"{first.in_channels} channel{'s' * (first.in_channels > 1)}"))
    if _outputs(head[1]) != 1000:
        found.append((head[0], f"{_outputs(head[1])} classes"))
    return found


def _outputs(module: nn.Module) -> int | None:
    """How many outputs a layer has that may be a head."""
    if isinstance(module, nn.Linear):
        return module.out_features
    return module.out_channels if isinstance(module, nn.Conv2d) else None


def _first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d]:
    return next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))


def has_small_stem(model: nn.Module) -> bool:
    """Whether the stem can be made smaller: a strided convolution, and a pooling behind it."""
    modules = list(model.modules())
    first = next((m for m in modules if isinstance(m, nn.Conv2d)), None)
    pools = any(isinstance(m, nn.MaxPool2d) for m in modules)
    return first is not None and max(first.stride) > 1 and pools


def _small_stem(model: nn.Module, name: str) -> None:
    if not has_small_stem(model):
        raise UsageError(
            f"{name} has no stem that could be made smaller", "set --model.stem standard"
        )
    where, first = _first_convolution(model)
    pools = [n for n, m in model.named_modules() if isinstance(m, nn.MaxPool2d)]
    bias = first.bias is not None
    stem = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=bias)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(where, stem)
    model.set_submodule(pools[0], nn.Identity())


def _channels(model: nn.Module, channels: int) -> None:
    """Let the first convolution take that many channels, with fresh weights."""
    _, first = _first_convolution(model)
    shape = (first.out_channels, channels, *first.kernel_size)
    first.in_channels = channels
    first.weight = nn.Parameter(torch.empty(shape))
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")


def _new_head(model: nn.Module, classes: int) -> None:
    named = list(model.named_modules())
    linear = [(name, m) for name, m in named if isinstance(m, nn.Linear)]
    if linear:
        where, head = linear[-1]
        if head.out_features != classes:
            model.set_submodule(where, nn.Linear(head.in_features, classes))
    else:  # SqueezeNet's head is a 1×1 convolution
        where, last = [(name, m) for name, m in named if isinstance(m, nn.Conv2d)][-1]
        if last.out_channels != classes:
            model.set_submodule(where, nn.Conv2d(last.in_channels, classes, 1))
