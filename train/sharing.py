"""A model that the processes share: each has a part of every tensor, or some of the layers."""

from torch import nn
from torch.optim import Optimizer

from host.errors import UsageError
from train import learner
from train.config import Config
from train.lanes import launched
from train.lanes.runtime import Runtime
from train.lanes.sharding import Sharding
from train.lanes.stages import Stages
from train.lanes.staging import Staging
from train.lanes.traits import Traits


def shared(
    model: nn.Module,
    optimizer: Optimizer,
    config: Config,
    runtime: Runtime,
    *,
    traits: Traits,
    stages: Stages | None,
) -> Sharding | Staging | None:
    """The model as it is trained, and what this process has of it; None: all of it.

    Args:
        stages: where it is cut; None: it is not.

    Raises:
        UsageError: it would be trained otherwise, or not at all.
    """
    found: Sharding | Staging | None = None
    if stages is not None:
        assert runtime.links is not None
        with runtime.together():
            _check_unmoved(model, traits)
            found = Staging(model, optimizer, stages, runtime.links, runtime.team)
    # Of a model in stages, this one's blocks alone keep anything.
    learner.as_trained(model, config, traits)
    if runtime.sharded:
        found = _sharding(model, optimizer, config, runtime, traits=traits)
    return found


def _sharding(
    model: nn.Module,
    optimizer: Optimizer,
    config: Config,
    runtime: Runtime,
    *,
    traits: Traits,
) -> Sharding:
    """The model and what the optimizer keeps, spread over the processes.

    Raises:
        UsageError: it would be trained otherwise, or not at all.
    """
    _check_unmoved(model, traits)
    assert runtime.control is not None  # of several processes
    return Sharding(
        model,
        optimizer,
        rank=runtime.rank,
        world=runtime.world,
        control=runtime.control,
        exact=config.lockstep,
        again=launched.gathers_again(),
    )


def _check_unmoved(model: nn.Module, traits: Traits) -> None:
    """See that nothing but the optimizer moves a parameter.

    Raises:
        UsageError: the model does.
    """
    names = dict(model.named_parameters(remove_duplicate=False))
    for found, what in (
        (traits.late, "comes in parts, as of checkpointing with use_reentrant=True"),
        (traits.measured | traits.moving, "is changed by the model itself"),
    ):
        name = min((name for name in found if name in names), default=None)
        if name is not None:
            raise UsageError(
                f"{name} {what}, and each process has a part of the model",
                "train it whole: leave STAGES and ACCELERATE=fsdp out",
            )
