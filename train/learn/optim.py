"""Parameter groups and the optimizer; the learning rate is set by the loop from `lr_at`."""

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from host.errors import UsageError
from train.config import Optim
from train.learn import schedule


def build(config: Optim, model: nn.Module) -> Optimizer:
    """The optimizer, with weight decay on tensors of two dimensions or more only.

    Raises:
        UsageError: there is nothing to train.
    """
    wanted = [p for p in model.parameters() if p.requires_grad]
    if not wanted:
        raise UsageError(
            "no parameter of the model can be trained: all are frozen",
            "leave some of them unfrozen (requires_grad)",
        )
    groups = [
        {"params": [p for p in wanted if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in wanted if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "adamw":
        return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    # Nesterov's form without momentum is an error in torch, and means plain SGD.
    nesterov = config.nesterov and config.momentum > 0
    return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov)


def moments(config: Optim) -> int:
    """Tensors of each weight's size that the optimizer keeps."""
    return 2 if config.name == "adamw" else int(config.momentum > 0)


def lr_at(config: Optim, step: int, total: int) -> float:
    """The learning rate of the update that follows `step` of `total` updates."""
    return schedule.lr_at(
        step,
        total,
        peak=config.lr,
        warmup=config.warmup,
        kind=config.schedule,
        final=config.final,
        milestones=config.milestones,
        gamma=config.gamma,
    )
