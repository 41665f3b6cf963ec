"""timm's models, made to fit: channels, head, and the size of images where a model has one."""

from contextlib import nullcontext
from typing import Any

from torch import nn

from host.errors import UsageError, first_line, nearest
from train.config import Model
from train.learn import hub

Shape = tuple[int, int, int]
_DROPPING = ("DropPath", "StochasticDepth")


def build(config: Model, name: str, classes: int, shape: Shape) -> nn.Module:
    """The model that timm knows as `name`, for images of `shape` (C, H, W).

    Raises:
        UsageError: no such model, it does not fit, or its weights cannot be had.
    """
    import timm  # seconds of imports that others need not pay

    bare = name.partition(".")[0]  # what stands behind a dot names weights
    if not timm.is_model(bare):
        near = nearest(bare, timm.list_models(), count=3)
        raise UsageError(f"timm has no model {bare}{near}", "timm.list_models() lists them")
    if config.stem != "standard":
        raise UsageError(f"timm:{name} has one stem only", "set --model.stem standard")
    pretrained = config.weights is not None and config.file is None and config.hub_id is None
    if pretrained and config.weights != "DEFAULT":
        raise UsageError(
            f"timm:{name} has no weights {config.weights!r}",
            "use DEFAULT, with the weights' name behind the model's (timm:resnet50.a1_in1k), a"
            " .safetensors file or a hub id",
        )
    try:
        about = timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:
        known = timm.list_pretrained(f"{bare}.*")
        raise UsageError(
            f"timm:{bare} has no weights named {name.partition('.')[2]}",
            f"there are {', '.join(known)}" if known else f"say timm:{bare}",
        ) from error
    options: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
    if about is not None and about.fixed_input_size:
        options["img_size"] = shape[1:]
    if config.drop_path is not None:
        options["drop_path_rate"] = config.drop_path
    fix = "check the network, or give a .safetensors file as --model.weights"
    fetching = hub.asked(f"weights of timm:{name}", fix) if pretrained else nullcontext()
    with fetching:
        model = _made(name, options, pretrained=pretrained)
    # Some models take any option, whether it is known to them or not.
    if config.drop_path and not any(type(m).__name__ in _DROPPING for m in model.modules()):
        raise UsageError(
            f"model.drop_path: timm:{name} has no residual branches known here",
            "take it away, or use another model",
        )
    return model


def _made(name: str, options: dict[str, Any], *, pretrained: bool) -> nn.Module:
    import timm

    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except TypeError as error:
        knobs = {"drop_path_rate": "model.drop_path", "img_size": "data.size"}
        knob = next((knobs[o] for o in options if o in knobs and o in str(error)), None)
        raise UsageError(
            f"timm:{name} cannot be built: {first_line(error)}",
            f"take {knob} away, or use another model" if knob else "use another model",
        ) from error
    except Exception as error:  # whatever a model raises
        if pretrained or isinstance(error, MemoryError) or "memory" in str(error):
            raise
        raise UsageError(
            f"timm:{name} cannot be built: {first_line(error)}",
            "use another --data.size, or another model",
        ) from error
    return model
