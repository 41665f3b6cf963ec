"""What training makes smaller: cross-entropy, or a function of the user's."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from host import dotted
from host.errors import LockstepError, UsageError, first_line
from train.config import Optim

BCE = "bce"
Loss = Callable[[Tensor, Tensor], Tensor]
"""From logits, float32 [B, classes], and labels, int64 [B], to each sample's loss, float32 [B]."""


def build(config: Optim, labels: Tensor | None = None, classes: int = 0) -> Loss:
    """The loss that `config` names.

    Args:
        labels: those of the training set, int64 [N], on the device; for weights of classes.

    Raises:
        UsageError: there is no such function; when it is called: it gives something else than a
            loss for each sample.
    """
    smoothing = config.label_smoothing
    if config.loss is None:
        loss: Loss = partial(functional.cross_entropy, reduction="none", label_smoothing=smoothing)
    elif config.loss == BCE:
        loss = partial(_binary, smoothing)
    else:
        loss = partial(_checked, dotted.load("optim.loss", config.loss), config.loss)
    if config.class_weights is None or labels is None:
        return loss
    counts = labels.bincount(minlength=classes).double()
    weights = (len(labels) / (classes * counts.clamp(min=1))).float()
    return partial(_weighted, loss, weights)


def _binary(smoothing: float, logits: Tensor, labels: Tensor) -> Tensor:
    """One question for each class: is it that? The mean over classes, as timm takes it."""
    classes = logits.shape[1]
    targets = torch.full_like(logits, smoothing / classes)
    targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / classes)
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)


def _weighted(loss: Loss, weights: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    return loss(logits, labels) * weights[labels]


def tried(config: Optim) -> Loss | None:
    """The user's own loss for a try before the first step, where whatever it raises is its fault;
    None where there is none.
    """
    return partial(_named, build(config), config.loss) if config.loss is not None else None


def total(
    loss: Loss, logits: Tensor, labels: Tensor, partners: Tensor | None, shares: Tensor | None
) -> Tensor:
    """The sum of a lane's losses.

    Args:
        partners, shares: of mixed samples the other label, int64 [B], and how much of each is its
            own, float32 [B].
    """
    losses = loss(logits, labels)
    if partners is not None and shares is not None:
        losses = losses * shares + loss(logits, partners) * (1 - shares)
    return losses.sum()


def _checked(function: Loss, name: str, logits: Tensor, labels: Tensor) -> Tensor:
    found = function(logits, labels)
    if not isinstance(found, Tensor) or found.shape != labels.shape:
        alone = isinstance(found, Tensor)
        shape = (list(found.shape) or "one number") if alone else type(found).__name__
        other = "no mean: reduction='none'" if alone else "nothing beside it"
        raise UsageError(
            f"optim.loss {name} returned {shape} for {len(labels)} samples",
            f"return the loss of each sample, a tensor [B], and {other}",
            one_rank=True,
        )
    return found.float()


def _named(loss: Loss, name: str, logits: Tensor, labels: Tensor) -> Tensor:
    try:
        return loss(logits, labels)
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # whatever a function raises
        if "memory" in str(error):
            raise
        raise UsageError(
            f"optim.loss {name} failed ({type(error).__name__}: {first_line(error)})",
            "mend it; --debug shows where",
        ) from error
