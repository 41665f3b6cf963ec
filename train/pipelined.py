"""A step of training on one stage of a pipeline: one forward pass, one backward pass (1F1B).

Narayanan and others, PipeDream, 2019. A stage begins with as many forward passes as there are
stages after it; from then on, one backward pass follows one forward pass. So it holds the
activations of that many lanes at most, and one more. A step's lanes are its micro-batches: what
each adds to the gradients is put on the lanes' tree, in their order, whatever the schedule.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from train.data import Batch
from train.lanes import order
from train.lanes.pipeline import Flight, Pipeline
from train.lanes.stagesum import StageSum
from train.learn.loss import total
from train.parts import Parts


@dataclass(frozen=True)
class _Lane:
    """A lane between its passes; nothing of both where it has no samples."""

    flight: Flight | None
    loss: Tensor | None


def forward_backward(parts: Parts, batches: Iterator[Batch], step: int) -> Tensor:
    """The lanes of one step on this process's stage: all, or those of its copy of the model; its
    gradients end up summed over all lanes.

    Args:
        batches: these lanes' samples, on the first stage.

    Returns:
        Mean loss and accuracy of the whole batch, float32 [2], on the device.
    """
    config, runtime, sums, pipeline = parts.config, parts.runtime, parts.reducer, parts.pipeline
    assert isinstance(sums, StageSum)
    assert pipeline is not None
    size = order.consumed(step + 1, config.batch_size, parts.samples) - step * config.batch_size
    flying: deque[_Lane] = deque()

    def back() -> None:
        lane = flying.popleft()
        sums.forget()
        if lane.loss is not None:
            runtime.accelerator.backward(lane.loss * (sums.scale / size))
        if lane.flight is not None:
            pipeline.backward(lane.flight)
        sums.gather()

    for lane in runtime.lanes:
        runtime.pulse.count += 1
        flying.append(_forward(parts, pipeline, sums, batches, step=step, lane=lane, size=size))
        if len(flying) >= pipeline.count - pipeline.stage:
            back()
    while flying:
        back()
    runtime.vote.ask(bool(parts.stop))
    with parts.watch.span("communication"), runtime.pulse.together("the sum of gradients"):
        pipeline.links.settle()
        return sums.total() / size


def _forward(
    parts: Parts,
    pipeline: Pipeline,
    sums: StageSum,
    batches: Iterator[Batch],
    *,
    step: int,
    lane: int,
    size: int,
) -> _Lane:
    config, device = parts.config, parts.runtime.device
    span = order.lane_range(
        step, lane, lanes=config.lanes, batch_size=config.batch_size, total=parts.samples
    )
    count = span[1] - span[0]
    batch = next(batches) if pipeline.first else None
    sums.begin()
    found, report = _Lane(None, None), torch.zeros(2, device=device)
    if count:
        reseed = partial(parts.generators.seed_lane, config.seed, step, lane)
        if batch is not None:
            pipeline.tell([batch.labels, batch.partners, batch.shares])
        told = pipeline.told() if pipeline.last else []  # before what they belong to
        flight = pipeline.forward(batch.images if batch is not None else None, reseed)
        found = _Lane(flight, None)
        if isinstance(flight.gave, Tensor):
            labels, partners, shares = told
            assert labels is not None
            logits = flight.gave.float()
            loss = total(parts.loss, logits, labels, partners, shares)
            prevailing = Batch(logits, labels, labels, partners, shares).prevailing
            hits = (logits.detach().argmax(1) == prevailing).sum()
            report = torch.stack([loss.detach(), hits.float()])
            found = _Lane(flight, loss)
    sums.leave(count / size, report)
    return found
