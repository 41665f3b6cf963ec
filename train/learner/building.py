"""Model and optimizer as an experiment says, new from the seed."""

from contextlib import nullcontext
from typing import NoReturn

from torch import nn
from torch.optim import Optimizer

from host import dotted
from host.errors import LockstepError, UsageError, first_line
from train.config import Config
from train.data import ImageData
from train.lanes import seeds
from train.lanes.runtime import Runtime
from train.lanes.state import move
from train.lanes.traits import Traits
from train.learn import activations, models, optim
from train.learn.alone import alone
from train.process.exhausted import out_of_memory


def new(config: Config, images: ImageData, runtime: Runtime) -> tuple[nn.Module, Optimizer]:
    """Model and optimizer, new from the seed.

    Raises:
        UsageError: there is no such model, or it cannot be built.
    """
    model = built(config, images, runtime)
    return model, optim.build(config, model)


def built(config: Config, images: ImageData, runtime: Runtime) -> nn.Module:
    """The model alone."""
    dotted.load_all(config.own_code)  # an import may draw numbers, or seed: before we do
    seeds.seed_start(config.seed)
    # At lockstep a constructor that asks is told that this process is the only one.
    with alone() if config.lockstep else nullcontext():
        model = models.build(config.model, len(images.classes), images.train.shape)
    return move(model, runtime.device)


def as_trained(model: nn.Module, config: Config, traits: Traits) -> frozenset[str]:
    """Have the model keep for its backward pass what the experiment says.

    Returns:
        Names of the modules within what is computed again.

    Raises:
        UsageError: it has no blocks that could be computed again.
    """
    if config.model.activation_checkpointing:
        # At fast nobody has looked what moves.
        unknown = config.reproducibility == "fast"
        buffers = [name for name, _ in model.named_buffers()]
        return activations.compute_again(model, buffers if unknown else traits.moving)
    return frozenset()


def explain(config: Config, error: Exception) -> NoReturn:
    """Raise for people what a model raises where it is tried."""
    if isinstance(error, LockstepError) or out_of_memory(error, config):
        raise error
    if "deterministic" in str(error):
        said = str(error).strip().split(", but")[0].split(". ")[0]
        raise UsageError(
            f"{config.model.name}: {said}",
            "use another layer there, or --reproducibility fast",
        ) from error
    raise UsageError(
        f"{config.model.name} fails when it is tried, {type(error).__name__}: {first_line(error)}",
        "mend the model; --debug shows where",
    ) from error
