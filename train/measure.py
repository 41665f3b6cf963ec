"""Exact figures on any number of processes: each sample is measured once, in a fixed batch.

Batches are cut the same way on any number of processes, with the same threads a batch's
arithmetic does not depend on who computes it, and every process ends up with every sample's
outcome; so all figures, the confusion matrix to the digit, are those of one process.
"""

import math
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from host.errors import Stopped
from train.config import Config
from train.data import Augmenter, ImageData, eval_batches
from train.lanes.pipeline import Pipeline
from train.lanes.runtime import Runtime
from train.learn.inference import Inference
from train.process.interrupt import StopFlag


@dataclass(frozen=True)
class Outcomes:
    """What became of each sample of a validation set, on the CPU.

    Attributes:
        losses: float64 [N], in nats.
        predicted: the most probable class, int64 [N].
        probability: of that class, float64 [N].
        truth: probability of the class that its label names, float64 [N].
    """

    losses: Tensor
    predicted: Tensor
    probability: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Metrics:
    """Figures on a validation set; fractions from 0 to 1, loss in nats.

    Attributes:
        per_class: share of each class's samples that were recognised; None for a class without.
        confusion: counts; row: truth, column: prediction.
    """

    loss: float
    top1: float
    top5: float
    samples: int
    per_class: list[float | None]
    confusion: list[list[int]]
    outcomes: Outcomes = field(compare=False, repr=False)

    def headline(self) -> dict[str, float | None]:
        """The figures that fit on a line; a loss that is no number becomes None (JSON has none)."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {"loss": loss, "top1": self.top1, "top5": self.top5}

    def full(self) -> dict[str, object]:
        """All figures, for JSON."""
        return {
            **self.headline(),
            "samples": self.samples,
            "per_class": self.per_class,
            "confusion": self.confusion,
        }


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: ImageData,
    augmenter: Augmenter,
    runtime: Runtime,
    config: Config,
    *,
    stop: StopFlag,
    moving: Collection[str] | None = None,
    pipeline: Pipeline | None = None,
) -> Metrics:
    """Measure `model` on all of the validation split.

    All processes must call this together; each gets the same figures.

    Args:
        moving: names of what an evaluation is known to change, and is put back; None: to be found
            out, of a model that is not trained any more.
        pipeline: this process's stage, where the model is cut into stages.

    Raises:
        Stopped: `stop` was set on one of them before all was measured.
    """
    size, classes = len(data.validation), len(data.classes)
    # Loss, probabilities of prediction and truth; prediction, whether the truth is in the top 5.
    shares = torch.zeros(3, size, dtype=torch.float64, device=runtime.device)
    places = torch.zeros(2, size, dtype=torch.int64, device=runtime.device)
    number, rounds = runtime.rank, runtime.world
    if pipeline is not None:  # each batch passes all processes of a copy of the model
        number, rounds = pipeline.copy, runtime.team.size
    mine = slice(number, None, rounds)
    if pipeline is not None and not pipeline.first:
        mine = slice(size, None)
    with (
        Inference(model, config.seed, moving) as inference,
        closing(eval_batches(data.validation, config, mine, runtime.device)) as batches,
    ):
        # Some processes have a batch less; all must be there to agree.
        for turn in range(math.ceil(size / config.eval_batch / rounds)):
            if runtime.any(bool(stop)):
                raise Stopped("a signal came in an evaluation", "add --resume to go on")
            start, batch = next(batches, ((turn * rounds + number) * config.eval_batch, None))
            images = augmenter.normalize(batch.images) if batch is not None else None
            logits: Tensor | None
            if pipeline is not None:
                if start >= size:
                    continue
                logits = inference.staged(pipeline, images, start)
            elif images is not None:
                logits = inference.logits(images, start)
            elif runtime.sharded:  # the others compute, and need this process's part of weights
                first = data.validation.images(torch.zeros(1, dtype=torch.int64))
                inference.logits(augmenter.normalize(first.to(runtime.device)), 0)
                continue
            else:
                continue
            if logits is None:  # they come out on another process
                continue
            span = slice(start, start + len(logits))
            right = data.validation.labels[span].to(runtime.device)
            labels, probable = right[:, None], probabilities(logits)
            best = _best(logits)
            shares[0, span] = functional.cross_entropy(logits, right, reduction="none").double()
            shares[1, span] = probable.gather(1, best[:, :1])[:, 0]
            shares[2, span] = probable.gather(1, labels)[:, 0]
            places[0, span] = best[:, 0]
            places[1, span] = (best == labels).any(1).long()
    if pipeline is not None:
        pipeline.links.settle()
    # Zeros everywhere but in one process: these sums are exact in any order.
    shares, places = runtime.sum(shares).cpu(), runtime.sum(places).cpu()
    outcomes = Outcomes(shares[0], places[0], shares[1], shares[2])
    return _figures(outcomes, places[1], data.validation.labels, classes)


def predicted_class(logits: Tensor) -> Tensor:
    """int64 [B], as an evaluation counts it: of equal ones, which is first depends on how many are
    asked for.
    """
    return _best(logits)[:, 0]


def probabilities(logits: Tensor) -> Tensor:
    """float64 [B, classes] of float32 logits."""
    return logits.double().softmax(1)


def _best(logits: Tensor) -> Tensor:
    """The five most probable classes, or all of fewer, int64 [B, ≤5]."""
    return logits.topk(min(5, logits.shape[1])).indices


def _figures(outcomes: Outcomes, top5: Tensor, labels: Tensor, classes: int) -> Metrics:
    counts = torch.bincount(labels * classes + outcomes.predicted, minlength=classes**2)
    confusion: list[list[int]] = counts.view(classes, classes).tolist()
    per_class = [row[c] / sum(row) if sum(row) else None for c, row in enumerate(confusion)]
    hits = sum(row[c] for c, row in enumerate(confusion))
    return Metrics(
        # fsum is exact before its one rounding, so the order of samples does not matter either.
        loss=math.fsum(outcomes.losses.tolist()) / len(labels),
        top1=hits / len(labels),
        top5=int(top5.sum()) / len(labels),
        samples=len(labels),
        per_class=per_class,
        confusion=confusion,
        outcomes=outcomes,
    )
