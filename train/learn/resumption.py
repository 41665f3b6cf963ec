"""Would a checkpoint give a model back? Another one, built from the same seed, shows it.

The one that was tried is gone by then: of it there is its checkpoint, and digests of what it gave.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor, nn

from host.errors import UsageError
from train.lanes import attributes
from train.learn import weights
from train.learn.examine import check_same
from train.learn.passes import Digests, Outputs, Pass, first_difference, of_model
from train.learn.tries import Tries

_LOADING = (RuntimeError, KeyError, AttributeError, TypeError)


@dataclass
class Left:
    """What is left of a model that was tried, and is gone: another one is compared with it.

    Attributes:
        state: its checkpoint, on the CPU; taken out where it is loaded.
        slots: digests of what that was made of.
        results: of a training pass from there, and of an evaluation.
        outputs: of each of its modules in these two.
    """

    state: tuple[dict[str, Tensor], weights.Versions] | None
    slots: Digests
    results: tuple[Digests, Digests]
    outputs: tuple[Outputs, Outputs]


@dataclass(frozen=True)
class Beginning:
    """What a model begins with: digests of its tensors, and the numbers beside them."""

    slots: Digests
    numbers: attributes.Picture


def beginning(model: nn.Module) -> Beginning:
    """What a new model begins with."""
    return Beginning(of_model(model), attributes.numbers(model))


def leave(tries: Tries) -> Left:
    """What another model is compared with, when this one is gone.

    Raises:
        UsageError: no checkpoint could hold it.
    """
    training, evaluation = (way().digests() for way in (tries.train, tries.evaluate))
    seen, evaluated = (_outputs(way) for way in (tries.train, tries.evaluate))
    tries.forget_gradients()
    tries.kept.put_back()
    try:
        state = state_of(tries.model)
        return Left(
            weights.reread(state), of_model(tries.model), (training, evaluation), (seen, evaluated)
        )
    except _LOADING as error:
        raise _not_given_back(error) from error


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint would hold of a model.

    Raises:
        UsageError: it cannot hold that.
    """
    state: dict[str, Tensor] = model.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange:
        raise UsageError(
            f"the model's state_dict holds {strange[0]}, which is no tensor",
            "keep it as a tensor: checkpoints hold nothing that could run code",
        )
    return state


def check_resume(left: Left, begun: Beginning, resumed: Tries) -> None:
    """See that a checkpoint of what was tried, loaded into another model, goes on as that does.

    Args:
        begun: what the one that was tried began with.
        resumed: of that other one, new from the same seed.

    Raises:
        UsageError: it begins otherwise, or would be another training.
    """
    third = resumed.model
    _check_twins(begun, third)
    resumed.kept.values = []  # what it began with is as large as the weights
    state, left.state = left.state, None
    assert state is not None
    try:
        weights.put(third, *state)
    except _LOADING as error:
        raise _not_given_back(error) from error
    del state
    loaded = of_model(third)
    for name, digest in left.slots.items():
        if loaded.get(name) != digest:
            raise UsageError(
                f"a checkpoint would not give {name} back as it was",
                "mend the model's state_dict or load_state_dict",
            )
    resumed.kept.keep()
    resumed.train(seed=1)  # on a process that begins with another lane
    ways = (resumed.train, resumed.evaluate)
    for way, usual, outputs in zip(ways, left.results, left.outputs, strict=True):
        resumed.forget_gradients()
        check_same(way, usual, way().digests(), outputs)
    resumed.forget_gradients()


def _outputs(way: Callable[..., Pass]) -> Outputs:
    """What modules give in a pass. Only one's name is wanted: what fails for the hooks is good."""
    with suppress(Exception):
        return way(watch=True).outputs
    return []


def _not_given_back(error: Exception) -> UsageError:
    said = (str(error).strip().splitlines() or [""])[0][:200]
    return UsageError(
        f"a checkpoint could not give the model back: {type(error).__name__}: {said}",
        "mend its state_dict, load_state_dict, or the types of its tensors",
    )


def _check_twins(begun: Beginning, twin: nn.Module) -> None:
    """See that two that were built from the same seed begin with the same numbers.

    Raises:
        UsageError: naming what does not.
    """
    name = first_difference(begun.slots, of_model(twin))
    if name is not None:
        raise UsageError(
            f"{name} does not begin with the same numbers when the model is built again",
            "draw initial weights from torch's, numpy's or Python's own generator",
        )
    # Names and numbers of objects may differ; where they matter, so does what comes out of a pass.
    path = attributes.difference(begun.numbers, attributes.numbers(twin))
    if path is not None:
        raise UsageError(
            f"{path} is not the same when the model is built again: it would differ on each process"
            " and at each start",
            "draw it from torch's, numpy's or Python's own generator, or leave it out",
        )
