"""What each stage of a model needs of memory, from the model's shapes alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from host.stages import Stages
from train.config import Config
from train.lanes.blocks import units
from train.lanes.reducer import apart_copies, arriving, exchanged_copies
from train.learn import optim
from train.learn.alone import alone
from train.process.memory import Need, Shape, before, blank, kept


def needs(
    config: Config,
    classes: int,
    shape: Shape,
    staged: Stages,
    *,
    half: bool,
    host: bool = False,
    copies: int = 1,
) -> list[Need] | None:
    """What each stage of each copy needs; None where the model's sizes follow from numbers, or
    where it cannot be cut so.

    Where nobody has named the places to cut at, stages of as many operations are taken for those
    that the training will find by time.

    Args:
        shape: (C, H, W) of an image.
        half: mixed precision.
        host: in the host's memory.
        copies: of the model, which share the lanes.
    """
    try:
        with alone():
            model = blank(config.model, classes, shape)
            cuts = staged.names or _balanced(model, shape, staged.count)
            seen = _seen(model, config, shape, cuts) if cuts is not None else None
    except Exception:  # whatever a model raises that cannot do without numbers
        return None
    if seen is None or seen.last != staged.count - 1:
        return None  # there are not all of these modules, or they are called more than once
    found = _needs(model, config, shape, seen, half=half, host=host, among=copies)
    return found * copies


@dataclass(frozen=True)
class _Seen:
    """A forward pass of the model in stages.

    Attributes:
        owners: the stage that has a parameter or a buffer first.
        lanes: bytes that a lane keeps for the backward pass, by stage.
        inside: and besides for one block at a time, where blocks are computed again.
        last: the number of the last stage.
    """

    owners: dict[torch.Tensor, int]
    lanes: Counter[int]
    inside: Counter[int]
    last: int


def _seen(model: nn.Module, config: Config, shape: Shape, cuts: Sequence[str]) -> _Seen:
    owners: dict[torch.Tensor, int] = {}
    stage, again = 0, config.model.activation_checkpointing

    def begins(name: str, module: nn.Module) -> None:
        nonlocal stage
        stage += name in cuts
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(tensor, stage)

    with _told(model, begins):
        lanes, inside = kept(model, config.micro_batch, shape, again=again, now=lambda: stage)
    return _Seen(owners, lanes, inside, stage)


def _needs(
    model: nn.Module,
    config: Config,
    shape: Shape,
    seen: _Seen,
    *,
    half: bool,
    host: bool,
    among: int,
) -> list[Need]:
    count, lanes, inside = seen.last + 1, seen.lanes, seen.inside
    sizes: list[list[int]] = [[] for _ in range(count)]
    last, counted = 0, set[torch.Tensor]()
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            # What no module's pass uses stands by what is beside it, as where it is cut.
            last = seen.owners.get(tensor, last)
            if tensor not in counted:
                sizes[last].append(tensor.nbytes)
            counted.add(tensor)
    weights = [sum(each) for each in sizes]
    copies, away = optim.copies(config.optim), optim.kept(config.optim) * config.optim.offload
    mine = -(-config.lanes // among)  # of a copy
    sums = apart_copies(config, among) + exchanged_copies(config, among)
    whole, images = sum(weights), config.micro_batch * math.prod(shape) * 4
    rest = before(whole, whole * copies, config)
    if host:  # a GPU that has no room for two lanes of the whole model tries fewer images
        rest["start"] = max(rest["start"], 2 * (whole + _halved(sum(lanes.values()), half=half)))
    found = []
    for number, own in enumerate(weights):
        # A stage runs ahead of those after it (1F1B).
        flying = min(mine, count - number)
        lane = _halved(lanes[number], half=half) + (own // 2 if half else 0)
        held = flying * (lane + images * (number == 0)) + _halved(inside[number], half=half)
        summed = own * sums + arriving(config, among, sizes[number])
        found.append(Need(own, summed, own * copies, held, own * away, **rest))
    return found


def _halved(size: int, *, half: bool) -> int:
    return size // 2 if half else size


def _balanced(model: nn.Module, shape: Shape, count: int) -> tuple[str, ...] | None:
    """Where stages of about as many operations begin; None: it has too few blocks."""
    blocks = {id(block) for block in units(model)}
    order: list[tuple[str, int]] = []
    with FlopCounterMode(display=False) as counter, torch.no_grad():

        def begins(name: str, module: nn.Module) -> None:
            if id(module) in blocks and name not in dict(order):
                order.append((name, counter.get_total_flops()))

        with _told(model, begins):
            model(torch.zeros(2, *shape, device="meta"))
    total = counter.get_total_flops()
    cuts: list[str] = []
    for number in range(1, count):
        later = [each for each in order if each[1] > 0]
        later = [each for each in later if not cuts or each[1] > dict(order)[cuts[-1]]]
        if not later:
            return None
        cuts.append(min(later, key=lambda each: abs(each[1] - number * total / count))[0])
    return tuple(cuts)


@contextmanager
def _told(model: nn.Module, begins: Callable[[str, nn.Module], None]) -> Iterator[None]:
    """Have each module say its name when its forward pass begins."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():

            def hook(module: nn.Module, _given: Any, name: str = name) -> None:
                begins(name, module)

            hooks.callback(module.register_forward_pre_hook(hook).remove)
        yield
