"""Would this experiment fit a card that is not here, and how long would it take at least?

    python -m doctor.inside --verify configs/cifar10.yaml --on "RTX 3090"
    python -m doctor.inside --verify configs/cifar10.yaml --on 8GB

Memory is the estimate of `--verify`. The time is what the matrix units would need if nothing else
took any: a training takes longer, by as much as model, precision and data have it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from doctor.finding import Finding, fail, in_its_file, ok, skip, warn
from doctor.inside import datasheet
from host.errors import LockstepError, UsageError, nearest
from train import assemble, experiment
from train.config import Config
from train.data import ImageData
from train.data import load as load_data
from train.learn.alone import alone
from train.process import memory
from train.process.memory import CONTEXT, Need
from train.process.ways import ways

_LISTED = 0.96  # GiB that the driver lists for a GB of the datasheet: ECC, and what it keeps
LEAVE = 0.9
"""Of the memory: what fragments and libraries take besides."""
_BACKWARD = 3  # a step is a forward pass, and a backward pass of twice as many operations


@dataclass(frozen=True)
class Cards:
    """Cards that are not here.

    Attributes:
        sheet: None where only their memory is known.
        size: bytes of memory of each.
        count: how many.
    """

    name: str
    sheet: datasheet.Sheet | None
    size: float
    count: int


def examine(path: Path, card: str, count: str = "1", *, half: bool = False) -> list[Finding]:
    """Fits or not, the largest micro-batch, and a lower bound of the time.

    Args:
        card: a name, or the size of its memory.
        count: of cards, as GPUS has it; 1 where that is no number.
        half: mixed precision.
    """
    try:
        cards = _cards(card, count)
        config = experiment.load(path)
        data = load_data(config.data, config.augment)
        classes, shape = len(data.classes), data.train.shape
        need = memory.of_shapes(config, classes, shape, world=cards.count, half=half)
    except LockstepError as error:
        fix = in_its_file(error.fix)
        return [fail("on that card", error.problem, "nothing can be said of it", fix)]
    found = [ok("card", _described(cards))]
    try:
        samples = assemble.samples(config, data)
    except UsageError as error:
        samples = None
        found.append(fail("data", error.problem, "the training would end at once", error.fix))
    if config.portable:
        seen = "numerics: portable, which computes on CPUs alone"
        why = "what follows is of this experiment with numerics: native"
        found.append(warn("numerics on it", seen, why, "train there with --numerics native"))
    if need is None:
        return [
            *found,
            skip("on that card", "not known from shapes alone: make tune there says it"),
        ]
    return [*found, _memory(config, data, need, cards, half), _time(config, data, cards, samples)]


def _cards(words: str, gpus: str) -> Cards:
    count = int(gpus) if gpus.isdecimal() and int(gpus) else 1
    told = re.fullmatch(r"([0-9]{1,4}) ?(g|gb|gib)", words.strip().lower())
    if told:
        return Cards(f"a card of {told.group(1)} GB", None, int(told.group(1)) * 2**30, count)
    found = datasheet.named(words)
    if len(found) == 1:
        [(name, sheet)] = found.items()
        return Cards(name, sheet, sheet.size * _LISTED * 2**30, count)
    if found:
        raise UsageError(f"{words!r} may be {', '.join(found)}", "say which, or its memory: 24GB")
    near = nearest(words.lower(), datasheet.names())
    raise UsageError(f"there is no datasheet of {words!r} here{near}", "say its memory: 24GB")


def _described(cards: Cards) -> str:
    sheet = cards.sheet
    rates = f", {sheet.memory:.0f} GB/s, {sheet.matrix:.0f} TFLOP/s" if sheet else ""
    size = f"{cards.size / 2**30:.0f} GiB{rates}"
    return f"{cards.count} × {cards.name}: {size}; from the datasheet, nothing was run"


def _memory(config: Config, data: ImageData, need: Need, cards: Cards, half: bool) -> Finding:
    wanted = need.total + CONTEXT
    largest = _largest(config, data, cards, half)
    all_at_once = largest * cards.count >= config.batch_size
    most = "a whole batch fits at once" if all_at_once else f"up to {largest} fit"
    seen = (
        f"about {wanted / 2**30:.1f} of {cards.size / 2**30:.0f} GiB with micro-batches of"
        f" {config.micro_batch}; {most}"
    )
    if need.start > need.training:
        seen += "; the most before the first step, where the model is tried"
    if wanted <= LEAVE * cards.size:
        return ok("fits on it", seen)
    fix = ways(
        config,
        len(data.classes),
        data.train.shape,
        world=cards.count,
        half=half,
        room=LEAVE * cards.size - CONTEXT,
        visible=cards.count,
    )
    if largest < 1:
        return fail("fits on it", seen, "not even one image fits", fix)
    if wanted <= cards.size:
        return warn("fits on it", seen, "it may end in out of memory, hours later", fix)
    return fail("fits on it", seen, "it would end in out of memory", fix)


def _largest(config: Config, data: ImageData, cards: Cards, half: bool) -> int:
    """Images of the largest micro-batch that fits."""
    shape = data.train.shape
    with alone():
        model = memory.blank(config.model, len(data.classes), shape)
        again = config.model.activation_checkpointing
        kept = {count: memory.saved(model, count, shape, again=again) for count in (2, 4)}
    small, large = (
        memory.estimate(
            model,
            config.model_copy(update={"batch_size": count * config.lanes}),
            shape,
            kept[count],
            world=cards.count,
            half=half,
        )
        for count in kept
    )
    each = (large.activations - small.activations) / 2
    room = LEAVE * cards.size - CONTEXT
    left = room - small.weights - small.gradients - small.optimizer
    if left < 0 or small.start > room:
        return 0
    left += small.away - (small.activations - 2 * each)
    return max(0, math.floor(left / max(1, each)))


def _time(config: Config, data: ImageData, cards: Cards, samples: int | None) -> Finding:
    if cards.sheet is None or samples is None:
        why = "not known of a card without a name" if samples else "no step would be trained"
        return skip("time on it", why)
    with alone(), torch.no_grad():
        model = memory.blank(config.model, len(data.classes), data.train.shape)
        images = torch.zeros(2, *data.train.shape, device="meta")
        with FlopCounterMode(display=False) as counted:
            model(images)
    total = _BACKWARD * counted.get_total_flops() / 2 * samples
    seconds = total / (cards.sheet.matrix * 1e12 * cards.count)
    return ok(
        "time on it",
        f"{_spelled(seconds)} at the least: {total:.2g} operations for {samples:,} samples, at half"
        " precision; FP32 and small models take many times that",
    )


def _spelled(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
