"""Parameter groups and the optimizer; the learning rate is set by the loop from `lr_at`."""

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from host.errors import UsageError
from train.config import Config, Optim
from train.learn import schedule

OWN = "torch's choice"


def build(experiment: Config, model: nn.Module) -> Optimizer:
    """The optimizer, with weight decay on tensors of two dimensions or more only.

    Raises:
        UsageError: there is nothing to train.
    """
    config, fused = experiment.optim, kernel(experiment) == "fused"
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
    names = {id(p): name for name, p in model.named_parameters()}
    odd = next((names[id(p)] for p in wanted if fused and not p.is_floating_point()), None)
    if odd is not None:
        raise UsageError(
            f"{odd} is complex, which no fused optimizer takes, and numerics: portable needs one",
            "keep its real and imaginary parts as real numbers, or use --numerics native",
        )
    if config.name == "adamw":
        return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused or None)
    # Nesterov's form without momentum is an error in torch, and means plain SGD.
    nesterov = config.nesterov and config.momentum > 0
    momentum = config.momentum
    return SGD(groups, lr=config.lr, momentum=momentum, nesterov=nesterov, fused=fused or None)


def kernel(experiment: Config) -> str:
    """Which of torch's forms of an optimizer is taken: `fused`, or its own choice.

    The other two compute AdamW's square root with MKL's vector library, which rounds otherwise on
    other makers' CPUs; the fused one has the exact instruction.
    """
    return "fused" if experiment.portable else OWN


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
