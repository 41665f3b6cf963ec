"""From an experiment to the parts that train it: each thing is built here, once."""

import math
from functools import partial

from torch import nn
from torch.optim import Optimizer

from host import lanes
from host.errors import UsageError
from host.text import printable
from train import learner, sharing, wrapping
from train.config import Config
from train.data import Augmenter, ImageData, check_place, load
from train.lanes import order
from train.lanes.passage import Passage
from train.lanes.patience import all_done
from train.lanes.pipeline import Pipeline
from train.lanes.runtime import Runtime
from train.lanes.seeds import Generators
from train.lanes.sharding import Sharding
from train.lanes.staging import Staging
from train.lanes.traits import Traits
from train.learn import loss, optim
from train.learn.average import Average
from train.parts import Parts
from train.process import memory
from train.process.interrupt import StopFlag
from train.process.stopwatch import Stopwatch
from train.record import comparison, resume
from train.record.claim import Claim
from train.record.facts import Facts
from train.record.resume import State
from train.record.saver import Saver
from train.record.silence import told
from train.record.stateful import OptimizerState, ScalerState
from train.record.verification import AVERAGE


def data(config: Config, runtime: Runtime, stop: StopFlag) -> ImageData:
    """Both splits.

    Raises:
        DataError: the data cannot be had, or is not what the experiment says.
        UsageError: it is to be kept on GPUs, and there are none, or it is too large.
    """
    with runtime.together():
        check_place(config.data, runtime.device)
        optim.check_place(config.optim, runtime.device)
    if runtime.main and "/" in config.data.source:
        source = printable(config.data.source)
        print(f"looking for {source}, in the cache and on the hub")
    # A download, or a look at all pictures, may take hours on one machine and none on another.
    with runtime.together(), all_done("data", runtime.rank, runtime.world), stop.breaks():
        images = load(config.data, config.augment, config.eval)
    with runtime.together():
        comparison.agree_on_data(runtime, images.mark())
    with runtime.together():
        return images.placed(config.data, runtime.device)


def samples(config: Config, images: ImageData) -> int:
    """Samples the run consumes.

    Raises:
        UsageError: a batch is larger than the data.
    """
    there = len(images.train)
    if config.batch_size > there:
        raise UsageError(
            f"batch_size {config.batch_size} is larger than the {there} training samples",
            _smaller(config, there),
        )
    count = round(config.epochs * there)
    if config.max_steps is not None:
        count = min(count, config.max_steps * config.batch_size)
    if count % config.batch_size == 1 and count > 1:
        count -= 1  # batch norm cannot do with a last batch of one
    return max(1, count)


def _smaller(config: Config, there: int) -> str:
    """Knobs with which an epoch of so many samples has some batches."""
    each = config.augment.repeats
    most = 1 << max(0, there.bit_length() - 2)
    if each > most:
        return f"use --augment.repeats {most} or less, or add pictures"
    size = most // each * each
    words = f"use --batch_size {size}"
    if "lanes" not in config.model_fields_set:
        return words
    fits = math.gcd(size, config.lanes)
    while size // fits < lanes.FEW and fits % 2 == 0:  # or a warning says so then
        fits //= 2
    return words + f" --lanes {fits}" * (fits != config.lanes)


def facts(config: Config, images: ImageData, runtime: Runtime) -> Facts:
    """What this training's checkpoints say of it."""
    return Facts(
        config=config.model_dump(mode="json"),
        classes=images.classes,
        shape=images.train.shape,
        mean=images.mean,
        std=images.std,
        data_sha256=images.sha256,
        mixed_precision=runtime.accelerator.mixed_precision,
        world_size=runtime.world,
        sharded=runtime.sharded,
    )


def resumed(
    config: Config,
    runtime: Runtime,
    images: ImageData,
    *,
    claim: Claim,
    stop: StopFlag,
) -> tuple[Parts, State]:
    """Parts and state: new from the seed, or as the newest whole checkpoint left them.

    Raises:
        UsageError: there is no such model, or it does not fit the data.
        CheckpointError: there are checkpoints, and none is whole and of this training.
    """
    slow = f"trying {config.model.name} on a few images before the first step"
    with runtime.together(), told(slow, main=runtime.main):
        count = samples(config, images)
        if runtime.sharded:
            memory.keep_nothing(runtime.device)
        # Before the model that is trained: it would be there beside each that is tried.
        traits = learner.traits(config, images, runtime, count)
        exact = config.reproducibility != "fast"
        first_pass = learner.first_pass(config, images, runtime) if exact else None
        stages = learner.stages(config, images, runtime, traits) if runtime.stages else None
        memory.give_back(runtime.device)
        model, optimizer = learner.new(config, images, runtime)
        said = facts(config, images, runtime)
        saver = Saver(claim.checkpoints, config.checkpoint.keep, model, said)
        average = Average(model, config.optim.ema) if config.optim.ema else None
        register(saver, config, optimizer, runtime, average)
    state = resume.last(claim, saver, runtime, order.steps(count, config.batch_size))
    comparison.agree_on_pass(runtime, first_pass)
    traits, stages = runtime.from_main((traits, stages))
    sharding = sharing.shared(model, optimizer, config, runtime, traits=traits, stages=stages)
    if average is not None and sharding is not None:
        average.shard(sharding)
    memory.give_back(runtime.device)
    made = parts(
        config,
        runtime,
        images,
        model=model,
        optimizer=optimizer,
        saver=saver,
        traits=traits,
        count=count,
        stop=stop,
        average=average,
        first_pass=first_pass,
        sharding=sharding,
    )
    return made, state


def register(
    saver: Saver,
    config: Config,
    optimizer: Optimizer,
    runtime: Runtime,
    average: Average | None = None,
) -> None:
    """All that has state beside the model: what stands here is saved, and goes on when resumed."""
    saver.register("optimizer", OptimizerState(optimizer, optim.slots(config.optim)))
    if runtime.accelerator.scaler is not None:
        saver.register("scaler", ScalerState(runtime.accelerator.scaler))
    if average is not None:
        saver.register(AVERAGE, average)


def parts(
    config: Config,
    runtime: Runtime,
    images: ImageData,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    saver: Saver,
    traits: Traits,
    count: int,
    stop: StopFlag,
    average: Average | None = None,
    first_pass: str | None = None,
    sharding: Sharding | Staging | None = None,
) -> Parts:
    """What a training of `count` samples works with, but for what writes."""
    some = partial(learner.pictures, config, images, runtime, config.micro_batch)
    wrapped, reducer = wrapping.wrap(model, config, runtime, traits, sharding=sharding, some=some)
    generators, pipeline = Generators(model), None
    if isinstance(sharding, Staging):
        passage = Passage(model, wrapped, sharding.stages, generators)
        pipeline = Pipeline(passage, sharding, runtime.pulse)
    return Parts(
        config=config,
        runtime=runtime,
        data=images,
        augmenter=Augmenter(config.augment, images.mean, images.std, runtime.device),
        model=wrapped,
        unwrapped=model,
        traits=traits,
        generators=generators,
        loss=loss.build(config.optim, images.train.labels.to(runtime.device), len(images.classes)),
        # The optimizer's state is where it belongs; Accelerate would move AdamW's step counts to
        # the GPU, where each is waited for.
        optimizer=runtime.accelerator.prepare_optimizer(optimizer, device_placement=False),
        reducer=reducer,
        saver=saver,
        tripwire=wrapping.tripwire(model, optimizer, config, runtime, average),
        average=average,
        sharding=sharding,
        pipeline=pipeline,
        recorder=None,
        stop=stop,
        samples=count,
        first_pass=first_pass,
        watch=Stopwatch(runtime.device),
        health=None,
    )
