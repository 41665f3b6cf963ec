"""Stochastic depth: residual branches that are left out at random while a model trains.

Deep Networks with Stochastic Depth (Huang and others, 2016); the rate rises from 0 at the first
branch to what is asked for at the last.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from host.errors import UsageError

# What torchvision's blocks add to their input is what these modules in them give.
_BRANCHES = {"BasicBlock": ["bn2"], "Bottleneck": ["bn3"], "EncoderBlock": ["dropout", "mlp"]}


def leave_out(model: nn.Module, name: str, rate: float | None) -> None:
    """Let each sample of a training pass do without some of a model's residual branches.

    Args:
        name: the model's, for the error.
        rate: the share of samples that do without the last branch; None: as the model has it.

    Raises:
        UsageError: it has no branches that are known.
    """
    if rate is None:
        return
    branches = [*_branches(model)]
    if rate and not branches:
        raise UsageError(
            f"model.drop_path: {name} has no residual branches known here",
            "take it away, or use a ResNet, ViT, Swin, ConvNeXt, EfficientNet, MaxViT, or timm's",
        )
    for number, (block, parts) in enumerate(branches):
        share = rate * number / max(1, len(branches) - 1)
        for part in parts:
            block.get_submodule(part).register_forward_hook(partial(_thin, share, block))
        if not parts:
            block.p = share  # type: ignore[assignment]


def _branches(model: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Each block, and which of its parts give what it adds; or alone what leaves branches out."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "StochasticDepth":
            yield module, []
        elif kind in _BRANCHES and type(module).__module__.startswith("torchvision."):
            yield module, _BRANCHES[kind]


def _thin(
    share: float, block: nn.Module, _part: nn.Module, _inputs: object, output: Tensor
) -> Tensor:
    """What a branch gave, without some of its samples, and the others the stronger for it.

    The block knows whether it trains; a part of it may be a frozen norm, which never does.
    """
    from torchvision.ops import stochastic_depth  # two seconds of imports

    thinned: Tensor = stochastic_depth(output, share, "row", training=block.training)
    return thinned
