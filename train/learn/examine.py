"""Is a training a function of seed, data and what checkpoints hold? Tried before it begins.

A few small passes on a model that is thrown away. What remembers something outside of parameters
and buffers (a counter in an attribute, a generator that nobody seeds) gives other results when it
is asked again, or leaves other attributes behind: it would not survive a resume, and the number of
lanes that a process runs would show. Such a model is refused by name, before the first step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from host.errors import UsageError, first_line
from train.lanes import attributes
from train.lanes.state import same, slots
from train.learn import weights
from train.learn.passes import Pass
from train.learn.tries import Tries

# Seeds of passes that only show what is changed where a model has drawn otherwise.
_DRAWN = (2, 3, 4, 5)
_KEEP = (
    "keep what it remembers in buffers that are saved (register_buffer), and draw from the"
    " generators of torch, numpy or Python"
)


Result = Mapping[str, Tensor | None] | Mapping[str, str | None]
"""What came out of a pass, by name: tensors, or digests of them."""


def examine(tries: Tries) -> None:
    """See what a model does that others do not, on one that is thrown away.

    Raises:
        UsageError: training would not come out the same again; naming what is in the way.
    """
    model = tries.model
    look, usual = tries.evaluate(), tries.train()
    held = attributes.picture(model)
    for seed in _DRAWN:
        tries.forward(seed)
    for others in (1, 2):  # what follows whether it was called an even number of times shows too
        for _ in range(others):
            tries.train(seed=1)
        again = tries.train()
        _check_memory(held, model)
        _check_same(tries, usual.result, again.result)
        del again  # as large as the weights
        _check_same(tries, look.result, tries.evaluate().result)
        # What evaluations keep is compared between two of them: the last loss may stay beside it.
        held_in_evaluation = attributes.picture(model)
        tries.evaluate()
        _check_memory(held_in_evaluation, model)
    _check_gradients(tries, usual)
    del look, usual
    _disturb(tries)


def _disturb(tries: Tries) -> None:
    """Leave it with other weights, and with the buffers that come of them."""
    for scale in (3.0, 1 / 3):
        tries.forget_gradients()
        before = tries.kept.values
        tries.disturb(scale)
        try:
            tries.train()
        except (ArithmeticError, RuntimeError, ValueError):  # a probability of 1.5, for instance
            tries.forget_gradients()
            tries.kept.values = before
            tries.train()
        del before
    # What is there now, in the first tensors: another state than a new model's, buffers as well.
    tries.kept.keep()
    tries.kept.put_back()


def check_resume(tries: Tries, resumed: Tries) -> None:
    """See that a checkpoint of what was tried, loaded into another model, goes on as that does.

    Args:
        resumed: of that other one, built from the same seed.

    Raises:
        UsageError: it would be another training.
    """
    third = resumed.model
    # Each is as large as the weights: gradients, and what the other one began with.
    tries.forget_gradients()
    resumed.kept.values = []
    try:
        state = tries.model.state_dict()
        strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if strange:
            raise UsageError(
                f"the model's state_dict holds {strange[0]}, which is no tensor",
                "keep it as a tensor: checkpoints hold nothing that could run code",
            )
        weights.put(third, *weights.reread(state))
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise UsageError(
            f"a checkpoint could not give the model back: {type(error).__name__}: {said}",
            "mend its state_dict, load_state_dict, or the types of its tensors",
        ) from error
    loaded = {slot.name: slot for slot in slots(third)}
    for slot in tries.kept.slots:
        if not same(slot.now, loaded[slot.name].now):
            raise UsageError(
                f"a checkpoint would not give {slot.name} back as it was",
                "mend the model's state_dict or load_state_dict",
            )
    resumed.kept.keep()
    resumed.train(seed=1)  # on a process that begins with another lane
    resumed.forget_gradients()
    for way in (Tries.train, Tries.evaluate):
        usual = way(tries).digests()
        tries.forget_gradients()
        _check_same(tries, usual, way(resumed).digests(), resumed)
        resumed.forget_gradients()


def check_again(tries: Tries, again: Tries) -> None:
    """See that activations which are computed again are the same.

    Args:
        again: the same model with the same state, which computes them again.

    Raises:
        UsageError: gradients come out otherwise, or not at all.
    """
    way_out = "leave model.activation_checkpointing out"
    for seed in (0, 1):
        usual = tries.train(seed).digests()
        tries.forget_gradients()
        try:
            found = again.train(seed).digests()
        except RuntimeError as error:
            if "memory" in str(error):
                raise
            raise UsageError(
                "a block's activations cannot be computed again for the backward pass:"
                f" {first_line(error)}",
                way_out,
            ) from error
        again.forget_gradients()
        for name in {**usual, **found}:
            if usual.get(name) != found.get(name):
                raise UsageError(
                    f"{name} comes out otherwise where activations are computed again", way_out
                )
    if again.traits().late - tries.traits().late:
        raise UsageError("gradients come in parts where activations are computed again", way_out)


def check_twins(model: nn.Module, twin: nn.Module) -> None:
    """See that two that were built from the same seed begin with the same numbers.

    Raises:
        UsageError: naming what does not.
    """
    pairs = {slot.name: slot for slot in slots(twin)}
    for slot in slots(model):
        other = pairs.get(slot.name)
        if other is None or not same(slot.now, other.now):
            raise UsageError(
                f"{slot.name} does not begin with the same numbers when the model is built again",
                "draw initial weights from torch's, numpy's or Python's own generator",
            )
    # Names and numbers of objects may differ; where they matter, so does what comes out of a pass.
    path = attributes.difference(attributes.numbers(model), attributes.numbers(twin))
    if path is not None:
        raise UsageError(
            f"{path} is not the same when the model is built again: it would differ on each process"
            " and at each start",
            "draw it from torch's, numpy's or Python's own generator, or leave it out",
        )


def _check_memory(before: attributes.Picture, model: nn.Module) -> None:
    """What the model holds outside of parameters and buffers is what it held before."""
    path = attributes.difference(before, attributes.picture(model))
    if path is not None:
        raise UsageError(
            f"the model remembers something in {path}: no checkpoint holds that, and it would"
            " follow how many lanes a process runs",
            _KEEP,
        )


def _check_same(tries: Tries, one: Result, again: Result, resumed: Tries | None = None) -> None:
    """Two passes from one state gave the same; `resumed` did the second, where it was another."""
    for name in {**one, **again}:
        if not _equal(one.get(name), again.get(name)):
            module = _first_module(tries, resumed or tries, training=len(one) > 1)
            where = f"{module} gives" if module else f"{name} comes out as"
            when = "after a resume, after other images or as another process"
            raise UsageError(
                f"{where} something else {when if resumed else 'when it is asked again'}, from the"
                " same weights, buffers and seed",
                _KEEP,
            )


def _equal(one: Tensor | str | None, other: Tensor | str | None) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same(one, other)
    return one is other if isinstance(one, Tensor) or isinstance(other, Tensor) else one == other


def _first_module(tries: Tries, other: Tries, *, training: bool) -> str | None:
    """The first module whose output is not the same in two more passes; None: it did not show."""
    ways = [each.train if training else each.evaluate for each in (tries, other)]
    one, again = (way(watch=True) for way in ways)
    pairs = zip(one.outputs, again.outputs, strict=False)
    return next((a[0] for a, b in pairs if a != b), None)


def _check_gradients(tries: Tries, usual: Pass) -> None:
    """The model neither reads nor changes gradients that are there already."""
    filled = tries.train(filled=True)
    for name, parameter in tries.model.named_parameters():
        key = f"the gradient of {name}"
        if not parameter.requires_grad or tries.is_late(name):
            continue
        wanted, own = torch.ones_like(parameter), usual.result[key]
        if own is not None:
            wanted += own
        if not same(filled.result[key], wanted):
            raise _reads_gradients(name)
    if not same(filled.result["logits"], usual.result["logits"]):
        raise _reads_gradients("its parameters")


def _reads_gradients(name: str) -> UsageError:
    return UsageError(
        f"the model reads or changes the gradient of {name} in its forward pass",
        "leave zero_grad and .grad to the trainer: there a lane finds what the one before it left",
    )
