"""From a model's name to a module: torchvision's registry, and a few small nets of our own."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from host.errors import LockstepError, UsageError, nearest
from train.config import Model
from train.lanes.state import slots
from train.learn.weights import put, unpack

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
    "dropnet": dropnet,
    "mlp": mlp,
}


def build(config: Model, classes: int, shape: Shape, *, tried: bool = True) -> nn.Module:
    """The model that `config` names, for images of `shape` (C, H, W), on the CPU.

    Args:
        tried: whether blank images are passed through another one like it, which then goes.

    Raises:
        UsageError: no such model, or it cannot take such images, stem or weights.
    """
    model = _made(config, classes, shape)
    if config.weights and config.weights.endswith(".safetensors"):
        _load(model, Path(config.weights))
    if tried:
        _try(_made(config.model_copy(update={"weights": None}), classes, shape), config, shape)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
    # All of it, as after an evaluation: what a constructor left in another mode would come out of
    # the first one in this.
    model.train()
    return model


def _made(config: Model, classes: int, shape: Shape) -> nn.Module:
    if config.name in OURS:
        if config.stem != "standard":
            raise UsageError(f"{config.name} has one stem only", "drop --model.stem")
        model = OURS[config.name](classes, shape)
    else:
        model = _torchvision(config, classes, shape)
    # Lazy modules take their sizes from a blank image: an optimizer needs them.
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        model.eval()
        _pass(model, config, shape)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            # An expanded one (meshgrid makes them) could not be copied into.
            if buffer is not None and torch._debug_has_internal_overlap(buffer) == 1:
                module._buffers[name] = buffer.contiguous()
    slots(model)  # refuses what shares memory, which a device would part
    return model


def _torchvision(config: Model, classes: int, shape: Shape) -> nn.Module:
    from torchvision import models as registry  # two seconds of imports that ours need not pay

    known = registry.list_models(module=registry)
    if config.name not in known:
        near = nearest(config.name, [*OURS, *known], count=3)
        raise UsageError(
            f"there is no model {config.name}{near}",
            f"use one of ours ({', '.join(OURS)}) or a classification model of torchvision",
        )
    file = config.weights is not None and config.weights.endswith(".safetensors")
    named = None if file else config.weights
    # Two old models have more outputs while they train, unless told otherwise.
    old = config.name in ("googlenet", "inception_v3")
    options = {"aux_logits": False} if old else {}
    try:
        model: nn.Module
        if named:
            model = registry.get_model(config.name, weights=named, **options)
            _new_head(model, classes)
        else:
            options |= {"init_weights": True} if old else {}
            model = registry.get_model(config.name, weights=None, num_classes=classes, **options)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"{config.name} has no weights {named}: {error}", "use DEFAULT, or a .safetensors file"
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
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size not in (1, (1, 1)):
            size = module.output_size
            height, width = size if isinstance(size, tuple) else (size, size)
            assert height is not None  # torchvision gives both sides
            assert width is not None
            model.set_submodule(name, AveragePool((height, width)))
    return model


def _first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d]:
    return next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))


def _small_stem(model: nn.Module, name: str) -> None:
    where, first = _first_convolution(model)
    pools = [n for n, m in model.named_modules() if isinstance(m, nn.MaxPool2d)]
    if max(first.stride) == 1 or not pools:
        raise UsageError(f"{name} has no stem that could be made smaller", "drop --model.stem")
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


def _load(model: nn.Module, path: Path) -> None:
    try:
        given, versions = unpack(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot read weights {path}: {error}", "name a whole file") from error
    own = model.state_dict()
    strange = sorted(set(given) ^ set(own))
    # The head may differ: other data, other classes. Anything else is another model.
    unlike = [n for n in own if n not in strange and own[n].shape != given[n].shape]
    if strange or len({n.rsplit(".", 1)[0] for n in unlike}) > 1:
        raise UsageError(
            f"weights {path} are of another model ({(strange or unlike)[0]} does not fit)",
            "use the model.name and model.stem they were trained with",
        )
    put(model, {n: own[n] if n in unlike else given[n] for n in own}, versions)


def _try(model: nn.Module, config: Model, shape: Shape) -> None:
    """Pass two blank images through: what cannot train should say so before it does."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):  # it would talk to other processes
            module.eval()
    _pass(model, config, shape)


def _pass(model: nn.Module, config: Model, shape: Shape) -> None:
    _, height, width = shape
    try:
        with torch.no_grad():
            model(torch.zeros(2, *shape))
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # whatever a model raises
        if "deterministic" in str(error):
            raise not_deterministic(config.name, error) from error
        if "memory" in str(error):
            raise
        raise UsageError(
            f"{config.name} cannot take {width}×{height} images: {error or type(error).__name__}",
            "use --model.stem small, a larger --data.size, or a smaller model",
        ) from error


def not_deterministic(name: str, error: Exception) -> UsageError:
    """What to say of an operation that comes out other each time."""
    said = str(error).strip().split(", but")[0].split(". ")[0]
    return UsageError(f"{name}: {said}", "use another layer there, or --reproducibility fast")
