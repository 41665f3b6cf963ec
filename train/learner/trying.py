"""What an experiment's model does that others do not, and where it can be cut."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import nn

from host import lanes
from host.errors import LockstepError, UsageError
from train.config import Config
from train.data import ImageData
from train.lanes.runtime import Runtime
from train.lanes.settings import settings
from train.lanes.stages import Stages
from train.lanes.traits import USUAL, Traits
from train.learn import (
    examine,
    loss,
    portable,
    resumption,
    staged,
    tries,
)
from train.learn.alone import alone
from train.learner import sizes
from train.learner.building import as_trained, built, explain
from train.process import memory
from train.process.exhausted import out_of_memory

Place = Callable[[], AbstractContextManager[None]]


def traits(config: Config, images: ImageData, runtime: Runtime, samples: int | None) -> Traits:
    """What the experiment's model does that others do not. All processes ask: at lockstep the main
    one looks, and at other levels, where a model may talk to others, all do.

    One model is there at a time, with what it began with and its gradients.

    Args:
        samples: how many the training consumes: small batches that come through are tried; None:
            there is none to be tried.

    Raises:
        UsageError: it does not fit the data, or cannot be trained to the same bits; naming what is
            in the way.
    """
    level = config.reproducibility
    if (level == "lockstep" and not runtime.main) or (level == "fast" and samples is None):
        return USUAL
    # At lockstep no model is to make anything of how many processes there are.
    lockstep = level == "lockstep"
    one_of_many = partial(alone, launched=True) if lockstep else nullcontext
    one_of_none = partial(alone, launched=False) if lockstep else nullcontext
    own = loss.tried(config.optim)

    def another(place: Place, like: tries.Samples) -> tries.Tries:
        return tries.Tries(built(config, images, runtime), like, runtime, place, own)

    compiled = portable.compiled()
    try:
        few = sizes.samples(config, images, runtime, tries.SAMPLES)
        looked = another(one_of_many, few)
        _check_synchronised(looked.model, config, runtime, samples or 0)
        # Before anything else: what a model does once shows in its first pass.
        begun = resumption.beginning(looked.model)
        look = _see if level == "fast" else examine.examine
        if not _looked_at(looked, look, config, images, samples):
            del looked
            memory.give_back(runtime.device)
            few = sizes.samples(config, images, runtime, config.micro_batch)
            looked = another(one_of_many, few)
            look(looked)
        if level == "fast":
            sizes.try_all(looked, config, images, samples)
            return looked.traits() if runtime.sharded else USUAL
        left = resumption.leave(looked)
        found = looked.traits()  # of all its passes
        del looked
        memory.give_back(runtime.device)  # of a model that refers to itself nothing goes before
        resumed = another(one_of_none, few)
        resumption.check_resume(left, begun, resumed)
        if config.model.activation_checkpointing:
            examine.check_again(resumed, partial(as_trained, resumed.model, config, found))
        # Larger batches are tried as they are trained: there may be no memory for more.
        sizes.try_all(resumed, config, images, samples)
        del resumed
        memory.give_back(runtime.device)
        if config.portable:
            pictures = partial(sizes.pictures, config, images, runtime)

            def new_one() -> tries.Tries:
                made = another(one_of_none, few)
                as_trained(made.model, config, found)
                return made

            portable.check(new_one, pictures, config, compiled)
        _check_settings(runtime)
    except Exception as error:  # whatever a model raises
        explain(config, error)
    if found.late and level != "lockstep" and runtime.world > 1:
        raise UsageError(
            f"the gradient of {min(found.late)} comes in parts, which DDP cannot add up",
            "checkpoint activations with use_reentrant=False, or use lockstep",
        )
    return found


def _see(looked: tries.Tries) -> None:
    """What fails in a training that promises no bits fails here.

    Raises:
        UsageError: it cannot be trained, or saved.
    """
    looked.train()
    resumption.state_of(looked.model)
    if looked.runtime.sharded:
        # What it does to its own weights would be lost where a process has a part of them.
        looked.evaluate()
        examine.disturb(looked)


def _looked_at(
    looked: tries.Tries,
    look: Callable[[tries.Tries], None],
    config: Config,
    images: ImageData,
    samples: int | None,
) -> bool:
    """Look at a model; whether it takes as few images as that.

    Raises:
        UsageError: it cannot be trained to the same bits, or does not fit the data.
    """
    try:
        look(looked)
    except LockstepError:
        raise
    except Exception:  # whatever a model raises; the sizes may say better what is in the way
        sizes.try_all(looked, config, images, samples)
        if sizes.takes(looked, looked.samples.images):
            raise
        return False
    return True


def stages(config: Config, images: ImageData, runtime: Runtime, found: Traits) -> Stages | None:
    """Where the model is cut into the stages that were asked for. The main process looks; the
    others have None.

    Args:
        found: what the model does.

    Raises:
        UsageError: it cannot be cut so, or would compute otherwise.
    """
    wanted = runtime.stages
    if wanted is None or not runtime.main:
        return None
    own = loss.tried(config.optim)

    def chosen(count: int) -> Stages:
        few = sizes.samples(config, images, runtime, count)
        place = partial(alone, launched=True)
        looked = tries.Tries(built(config, images, runtime), few, runtime, place, own)
        again = partial(as_trained, looked.model, config, found)
        return staged.choose(looked, wanted, found, again)

    try:
        try:
            # A lane: kernels may go another way with another number of images.
            return chosen(config.micro_batch)
        except Exception as error:  # whatever a model raises
            if not out_of_memory(error, config):
                raise
        memory.give_back(runtime.device)
        return chosen(tries.SAMPLES)  # it is in stages since the whole has no room
    except Exception as error:  # whatever a model raises
        explain(config, error)
    finally:
        memory.give_back(runtime.device)


def first_pass(config: Config, images: ImageData, runtime: Runtime) -> str:
    """A digest of what a new model gives for the first images, with all gradients: machines that
    compute this model alike have the same. All processes ask, once it has passed `traits`.
    """
    place = alone if config.lockstep else nullcontext

    own = loss.tried(config.optim)

    def tried(count: int) -> str:
        few, model = sizes.samples(config, images, runtime, count), built(config, images, runtime)
        return tries.Tries(model, few, runtime, place, own).train().digest()

    try:
        try:
            return tried(tries.SAMPLES)
        except Exception:  # whatever a model raises that takes other sizes
            return tried(config.micro_batch)
    except Exception as error:  # whatever a model raises: at lockstep the main process tried alone
        explain(config, error)


def _check_synchronised(model: nn.Module, config: Config, runtime: Runtime, samples: int) -> None:
    """No layer waits for other processes that have another number of lanes, or none."""
    names = (name for name, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm))
    name = next(names, None)
    if name is None:
        return
    if config.lockstep:
        raise UsageError(
            f"{name} is a SyncBatchNorm, which looks at all processes at once",
            "use BatchNorm: at lockstep it sees a lane, on any number of processes",
        )
    if len({len(share) for share in runtime.shares}) > 1:
        raise UsageError(
            f"{name} is a SyncBatchNorm, and the processes have {lanes.said(runtime.shares)} lanes:"
            " some would wait for others that are done",
            "use a number of processes that divides the lanes, and no SHARES",
        )
    last = samples % config.batch_size
    if runtime.world > 1 and 0 < last < 2 * config.lanes:
        raise UsageError(
            f"{name} is a SyncBatchNorm, and the last step has {last} samples for {config.lanes}"
            " lanes: some processes would have none, and the others would wait for them",
            f"--max_steps {max(1, samples // config.batch_size)} leaves that step out",
        )


def _check_settings(runtime: Runtime) -> None:
    """The model has left alone what the trainer has pinned."""
    now = settings()
    for name, value in runtime.settings.items():
        if now[name] != value:
            raise UsageError(
                f"the model sets {name} to {now[name]}, and the trainer has it at {value}",
                "leave it to the trainer: it decides the bits",
            )
