"""A model as it is called, what sums over its lanes, and what watches its weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from train.config import Config
from train.lanes.allreduce import AllReduce
from train.lanes.reducer import Reducer
from train.lanes.runtime import Runtime
from train.lanes.sharding import Sharding
from train.lanes.shardreduce import ShardReduce
from train.lanes.shardsum import ShardSum
from train.lanes.stagesum import StageSum
from train.lanes.staging import Staging
from train.lanes.traits import Traits
from train.lanes.tree import LaneTree
from train.lanes.tripwire import Tripwire
from train.learn.average import Average


def wrap(
    unwrapped: nn.Module,
    config: Config,
    runtime: Runtime,
    traits: Traits,
    *,
    sharding: Sharding | Staging | None,
    some: Callable[[], Tensor],
) -> tuple[nn.Module, Reducer | StageSum]:
    """The model as it is called, and what sums over its lanes.

    Args:
        some: gives images of a lane, normalised.
    """
    tree = config.lockstep
    # Accelerate's evaluation mode is precision and device, without DDP.
    alone = tree or runtime.world == 1 or sharding is not None
    # The model is on its device; of one in stages the rest is nowhere, and cannot be moved.
    model: Any = runtime.accelerator.prepare_model(
        unwrapped, device_placement=False, evaluation_mode=alone
    )
    reducer: Reducer | StageSum
    if isinstance(sharding, Staging):
        shares = runtime.shares[:: sharding.stages.count]  # of each copy of the model
        reducer = StageSum(unwrapped, runtime.team, shares, traits, device=runtime.device)
    elif sharding is not None and tree:
        reducer = ShardSum(unwrapped, sharding, traits, some)
    elif sharding is not None:
        reducer = ShardReduce(unwrapped, sharding, len(runtime.lanes), some)
    elif tree:
        reducer = LaneTree(unwrapped, runtime.rank, runtime.shares, traits, team=runtime.team)
    else:
        reducer = AllReduce(model, runtime.world, traits)
    wrapped: Any = model
    if config.model.compile:
        # Which shapes came before on this process must not decide how one is computed: none is
        # taken for dynamic, and none is computed without the compiler once there were many.
        exact = config.reproducibility != "fast"
        torch._dynamo.config.fail_on_recompile_limit_hit = exact
        torch._dynamo.config.recompile_limit += len(config.augment.sizes or [])
        wrapped = torch.compile(model, dynamic=False)
    return wrapped, reducer


def tripwire(
    model: nn.Module,
    optimizer: Optimizer,
    config: Config,
    runtime: Runtime,
    average: Average | None = None,
) -> Tripwire | None:
    """What compares the processes' weights; None where there is one process."""
    # Of shards each is held once, and so is each stage of one copy of a model.
    if runtime.team.size == 1 or runtime.sharded:
        return None
    whole, watch = config.lockstep, config.tripwire > 0
    averaged = average.tensors() if average is not None else {}
    others = {f"the average of {name}": tensor for name, tensor in averaged.items()}
    return Tripwire(model, optimizer, runtime, others, buffers=whole, watch=watch)
