"""Random numbers that depend on nothing but the seed and the place in the run."""

import torch

from train.lanes.order import key


def seed_start(seed: int) -> None:
    """Seed for what is drawn once, before the first step: the initial weights."""
    _seed(key(seed))


def seed_lane(seed: int, step: int, lane: int) -> None:
    """Seed for one lane of one step: dropout and its like then depend on nothing else."""
    _seed(key(seed, step, lane))


def _seed(value: int) -> None:
    """Seed torch's generators as `torch.manual_seed` would.

    That one formats a stack trace for each kind of device that was not started, at each call: a
    tenth of a small step.
    """
    value &= 2**63 - 1
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(value)
