"""Does a model that is cut into stages compute what the whole one does? One process shows it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from host import stages as asked
from host.errors import LockstepError, UsageError, first_line
from train.lanes import attributes
from train.lanes.buffers import Buffers
from train.lanes.crossing import Crossing, sent
from train.lanes.passage import Passage
from train.lanes.stages import Stages, holding
from train.lanes.traits import Traits
from train.learn import cutting, seeing
from train.learn.passes import Digests, first_difference, told
from train.learn.tries import Tries

_MOST = 8  # modules that turn out to be no place to cut at, until the search is given up
_SEEDS = (0, 1)  # two lanes: the second one's forward pass comes before the first one's backward


def choose(
    tries: Tries, wanted: asked.Stages, traits: Traits, as_trained: Callable[[], frozenset[str]]
) -> Stages:
    """Where to cut a model: as asked for, or where the slowest stage takes least.

    Args:
        as_trained: has the model compute again what the experiment says, and names what is within
            a block of that: a block is in one stage.

    Raises:
        UsageError: it cannot be cut so.
    """
    seen = seeing.see(tries)
    seeing.time_them(tries, seen[0])
    within = as_trained()
    if inside := sorted(within & set(wanted.names)):
        raise UsageError(
            f"{wanted.words}: {inside[0]} is within a block that is computed again",
            "name what the block begins with, or leave model.activation_checkpointing out",
        )
    if wanted.names:
        found = cutting.stages(tries.model, seen, wanted.names)
        check(tries, found, traits)
        return found
    failed: set[str] = set()
    last = ""
    while True:
        cuts = cutting.best(tries.model, seen, wanted.count, within | failed)
        if cuts is None:
            raise UsageError(
                f"{wanted.words}: the model has not so many places where it can be cut{last}",
                "use ACCELERATE=fsdp" + ", or fewer stages" * (wanted.count > 2),
            )
        found = cutting.stages(tries.model, seen, cuts)
        try:
            check(tries, found, traits)
        except UsageError as error:
            if len(failed) >= _MOST:
                raise
            failed |= set(cuts)
            last = f"; tried last: {error.problem}"
            continue
        return found


def check(tries: Tries, stages: Stages, traits: Traits) -> None:
    """See that the stages' passes, one after another in this process, give what the model gives.

    Raises:
        UsageError: they do not, or there is a stage that cannot be computed by itself.
    """
    usual = [tries.train(seed).digests() for seed in _SEEDS]
    evaluated = tries.evaluate().digests()
    tries.forget_gradients()
    held = attributes.picture(tries.model)
    passage = Passage(tries.model, tries.model, stages, tries.generators)
    try:
        found = _trained(tries, stages, traits, passage, usual)
        found.append(_evaluated(tries, stages, passage))
    except (LockstepError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a model raises that is cut where it cannot be
        raise UsageError(
            f"the model cannot be cut at {' and '.join(stages.cuts)}:"
            f" {type(error).__name__}: {first_line(error)}",
            "name other modules, or train it whole: leave STAGES out",
        ) from error
    finally:
        passage.close()
        tries.forget_gradients()
        tries.kept.put_back()
    path = attributes.difference(held, attributes.picture(tries.model))
    if path is not None and "._flat_weights" in path:  # a list of torch's own, beside them
        layer = path.partition("._flat_weights")[0]
        raise UsageError(
            f"the model cannot be cut at {' and '.join(stages.cuts)}: the recurrent layer {layer}"
            " stands before that",
            "name a module before it; or STAGES=2, which looks for one; or leave STAGES out",
        )
    if path is not None:
        raise UsageError(
            f"the model, cut at {' and '.join(stages.cuts)}, remembers another {path} than whole",
            "keep nothing between passes, or train it whole: leave STAGES out",
        )
    for one, other in zip([*usual, evaluated], found, strict=True):
        name = first_difference({n: d for n, d in one.items() if n in other}, other)
        if name is not None:
            raise UsageError(
                f"the model, cut at {' and '.join(stages.cuts)}, computes {name} otherwise",
                "name other modules, or train it whole: leave STAGES out",
            )


def _trained(
    tries: Tries, stages: Stages, traits: Traits, passage: Passage, usual: list[Digests]
) -> list[Digests]:
    """What two lanes give, with both forward passes first."""
    with tries.within(training=True):
        buffers = Buffers(tries.model, traits.moving)
        lanes: list[list[tuple[Crossing | Tensor, Crossing | Tensor]]] = []
        found: list[Digests] = []
        for seed, wanted in zip(_SEEDS, usual, strict=True):
            buffers.begin(apart=True)
            reseed = partial(tries.generators.seed_lane, seed, 0, 0)
            lanes.append(_forward(tries, stages, passage, tries.images(seed), reseed))
            moved = {slot.name: slot.now for slot in tries.kept.slots if slot.name in wanted}
            found.append({name: told(tensor) for name, tensor in moved.items()})
            buffers.end(1.0)
        for lane, digests in zip(lanes, found, strict=True):
            logits = lane[-1][1]
            assert isinstance(logits, Tensor)
            digests["logits"] = told(logits.detach())
            _backward(tries, lane)
            for name, parameter in tries.model.named_parameters():
                digests[f"the gradient of {name}"] = told(parameter.grad)
                parameter.grad = None
    return found


def _forward(
    tries: Tries,
    stages: Stages,
    passage: Passage,
    images: Tensor,
    reseed: Callable[[], None],
) -> list[tuple[Crossing | Tensor, Crossing | Tensor]]:
    """What each stage was given, and what it gave."""
    given: Tensor | Crossing = images.clone()
    found = []
    for stage in range(stages.count):
        with holding(tries.model, stages, stage), tries.runtime.accelerator.autocast():
            gave = passage.run(stage, given, reseed)
        if isinstance(gave, Tensor):
            gave = gave.float()
        found.append((given, gave))
        given = gave.sent() if isinstance(gave, Crossing) else gave
    return found


def _backward(tries: Tries, lane: list[tuple[Crossing | Tensor, Crossing | Tensor]]) -> None:
    gradients: list[Tensor | None] = []
    for given, gave in reversed(lane):
        if isinstance(gave, Tensor):
            tries.loss(gave, tries.samples.labels).sum().backward()
        else:
            gave.backward(gradients)
        found = given.gradients if isinstance(given, Crossing) else []
        gradients = [None if g is None else sent(g) for g in found]


def _evaluated(tries: Tries, stages: Stages, passage: Passage) -> Digests:
    with tries.within(training=False), torch.no_grad():
        reseed = partial(tries.generators.seed_lane, 0, 0, 0)
        logits = _forward(tries, stages, passage, tries.samples.images, reseed)[-1][1]
    assert isinstance(logits, Tensor)
    return {"logits": told(logits)}
