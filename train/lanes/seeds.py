"""Random numbers that depend on nothing but the seed and the place in the run."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from train.lanes import attributes
from train.lanes.order import key

_EVALUATION = 1


def seed_start(seed: int) -> None:
    """Seed for what is drawn once, before the first step: the initial weights."""
    _seed(key(seed), ())


class Generators:
    """Whatever a model's forward pass may draw from: the generators of torch, Python and numpy, and
    those that it holds.
    """

    def __init__(self, model: nn.Module) -> None:
        self._own = attributes.generators(model)

    def seed_lane(self, seed: int, step: int, lane: int) -> None:
        """Seed for one lane of one step: dropout and its like then depend on nothing else."""
        _seed(key(seed, step, lane), self._own)

    def seed_evaluation(self, seed: int, start: int) -> None:
        """Seed for the batch of an evaluation that begins with the sample `start`."""
        _seed(key(seed, start, 0, _EVALUATION), self._own)

    def states(self) -> list[Any]:
        """Where all stand that are not torch's default ones."""
        return [random.getstate(), np.random.get_state(), *map(_state, self._own)]

    def put(self, states: list[Any]) -> None:
        """Have them stand there again."""
        random.setstate(states[0])
        np.random.set_state(states[1])
        for generator, state in zip(self._own, states[2:], strict=True):
            _put(generator, state)


def _seed(value: int, own: Iterable[Any]) -> None:
    """Seed torch's generators as `torch.manual_seed` would, and all others there are.

    That one formats a stack trace for each kind of device that was not started, at each call: a
    tenth of a small step.
    """
    value &= 2**63 - 1
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(value)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    for number, generator in enumerate(own):
        _seed_one(generator, key(value, number) & (2**63 - 1))


def _seed_one(generator: Any, value: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(value)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(value).state
    else:  # numpy's older kind takes 32 bits
        generator.seed(value & 0xFFFFFFFF)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _put(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def equal(one: Any, other: Any) -> bool:
    """Whether the states of generators are the same; they hold tensors, arrays and tuples."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
