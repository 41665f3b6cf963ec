"""Is a training a function of seed, data and what checkpoints hold? Tried before it begins.

A few small passes on a model that is thrown away. What remembers something outside of parameters
and buffers (a counter in an attribute, a generator that nobody seeds) gives other results when it
is asked again, or leaves other attributes behind: it would not survive a resume, and the number of
lanes that a process runs would show. Such a model is refused by name, before the first step.
"""

from collections.abc import Callable

import torch
from torch import nn

from host.errors import UsageError, first_line
from train.lanes import attributes
from train.learn.passes import Digests, Outputs, Pass, first_difference, told
from train.learn.tries import Tries

# Seeds of passes that only show what is changed where a model has drawn otherwise.
_DRAWN = (2, 3, 4, 5)
_KEEP = (
    "keep what it remembers in buffers that are saved (register_buffer), and draw from the"
    " generators of torch, numpy or Python"
)


def examine(tries: Tries) -> None:
    """See what a model does that others do not, on one that is thrown away.

    Beside its weights there are those that it began with, and gradients, and nothing else as large.

    Raises:
        UsageError: training would not come out the same again; naming what is in the way.
    """
    model = tries.model
    look, usual = tries.evaluate().digests(), tries.train().digests()
    held = attributes.picture(model)
    for seed in _DRAWN:
        tries.forward(seed)
    for others in (1, 2):  # what follows whether it was called an even number of times shows too
        for _ in range(others):
            tries.train(seed=1)
        again = tries.train().digests()
        _check_memory(held, model)
        check_same(tries.train, usual, again)
        check_same(tries.evaluate, look, tries.evaluate().digests())
        # What evaluations keep is compared between two of them: the last loss may stay beside it.
        held_in_evaluation = attributes.picture(model)
        tries.evaluate()
        _check_memory(held_in_evaluation, model)
    _check_gradients(tries)
    disturb(tries)


def disturb(tries: Tries) -> None:
    """Leave it with other weights, and with the buffers that come of them."""
    for scale in (3.0, 1 / 3):
        tries.disturb(scale)
        tries.train()
    # What is there now, in the first tensors: another state than a new model's, buffers as well.
    tries.forget_gradients()
    tries.kept.keep()
    tries.kept.put_back()


def check_again(tries: Tries, compute_again: Callable[[], object]) -> None:
    """See that activations which are computed again are the same.

    Args:
        compute_again: has the model that is tried do so from now on.

    Raises:
        UsageError: gradients come out otherwise, or not at all.
    """
    way_out = "leave model.activation_checkpointing out"
    seeds, late = (0, 1), tries.traits().late
    usual = [tries.train(seed).digests() for seed in seeds]
    tries.forget_gradients()
    compute_again()
    for seed, before in zip(seeds, usual, strict=True):
        try:
            found = tries.train(seed).digests()
        except RuntimeError as error:
            if "memory" in str(error):
                raise
            raise UsageError(
                "a block's activations cannot be computed again for the backward pass:"
                f" {first_line(error)}",
                way_out,
            ) from error
        tries.forget_gradients()
        name = first_difference(before, found)
        if name is not None:
            raise UsageError(
                f"{name} comes out otherwise where activations are computed again", way_out
            )
    if tries.traits().late - late:
        raise UsageError("gradients come in parts where activations are computed again", way_out)


def _check_memory(before: attributes.Picture, model: nn.Module) -> None:
    """What the model holds outside of parameters and buffers is what it held before."""
    path = attributes.difference(before, attributes.picture(model))
    if path is not None:
        raise UsageError(
            f"the model remembers something in {path}: no checkpoint holds that, and it would"
            " follow how many lanes a process runs",
            _KEEP,
        )


def check_same(
    way: Callable[..., Pass], one: Digests, again: Digests, before: Outputs | None = None
) -> None:
    """See that two passes from one state gave the same.

    Args:
        way: does such a pass once more.
        before: what modules gave in the first, where another model did it.

    Raises:
        UsageError: naming the first module that did not, where it shows.
    """
    name = first_difference(one, again)
    if name is None:
        return
    seen = way(watch=True).outputs if before is None else before
    pairs = zip(seen, way(watch=True).outputs, strict=False)
    module = next((a[0] for a, b in pairs if a != b), None)  # None: it did not show
    where = f"{module} gives" if module else f"{name} comes out as"
    when = "when it is asked again"
    if before is not None:
        when = "after a resume, after other images or as another process"
    # Modules gave the same, and gradients are others: what stands between them is the loss.
    loss = "; a loss of your own (optim.loss) must remember nothing from call to call"
    raise UsageError(
        f"{where} something else {when}, from the same weights, buffers and seed",
        f"{_KEEP}{loss * (module is None)}",
    )


def _check_gradients(tries: Tries) -> None:
    """The model neither reads nor changes gradients that are there already."""
    usual = tries.train().result
    logits, wanted = told(usual["logits"]), {}
    for name, parameter in tries.model.named_parameters():
        if parameter.requires_grad and not tries.is_late(name):
            own = usual[f"the gradient of {name}"]
            one = torch.ones_like(parameter)
            wanted[name] = told(one if own is None else one.add_(own))
    del usual
    filled = tries.train(filled=True).result
    for name, digest in wanted.items():
        if told(filled[f"the gradient of {name}"]) != digest:
            raise _reads_gradients(name)
    if told(filled["logits"]) != logits:
        raise _reads_gradients("its parameters")


def _reads_gradients(name: str) -> UsageError:
    return UsageError(
        f"the model reads or changes the gradient of {name} in its forward pass",
        "leave zero_grad and .grad to the trainer: there a lane finds what the one before it left",
    )
