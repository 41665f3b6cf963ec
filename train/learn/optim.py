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
    config = experiment.optim
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
        fused = kernel(experiment) == "fused"
        if fused:
            _check_fused(model)
        return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused or None)
    # Nesterov's form without momentum is an error in torch, and means plain SGD.
    nesterov = config.nesterov and config.momentum > 0
    return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov)


def kernel(experiment: Config) -> str:
    """Which of torch's forms of an optimizer is taken: `fused`, or its own choice.

    The other two compute AdamW's square root with MKL's vector library, which rounds otherwise on
    other makers' CPUs; the fused one has the exact instruction. SGD takes no root.
    """
    return "fused" if experiment.portable and experiment.optim.name == "adamw" else OWN


def _check_fused(model: nn.Module) -> None:
    """On CPUs the fused kernels take neither complex numbers nor another order in memory: of that
    they know nothing, and would move weights by their neighbours' gradients.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise UsageError(
                f"{name} is complex, which AdamW's fused form does not take, and numerics: portable"
                " needs that form",
                "keep its real and imaginary parts as real numbers, or use --numerics native",
            )
        if parameter.requires_grad and not parameter.is_contiguous():
            raise UsageError(
                f"{name} is not contiguous (as with model.channels_last), which AdamW's fused form"
                " does not take, and numerics: portable needs that form",
                "drop model.channels_last, use --optim.name sgd, or --numerics native",
            )


def slots(config: Optim) -> set[str]:
    """What the optimizer keeps of each parameter that it has moved, as torch names it."""
    if config.name == "adamw":
        return {"exp_avg", "exp_avg_sq", "step"}
    return {"momentum_buffer"} if config.momentum else set()


def copies(config: Optim) -> int:
    """Tensors of each weight's size that are kept beside it: the optimizer's, and the average."""
    return len(slots(config) - {"step"}) + (config.ema > 0)


def warmup(config: Optim, epoch: int) -> int:
    """Steps of the warm-up, of which an epoch has `epoch`."""
    return config.warmup or round(config.warmup_epochs * epoch)


def lr_at(config: Optim, step: int, total: int, epoch: int) -> float:
    """The learning rate of the update that follows `step` of `total`; an epoch has `epoch`."""
    return schedule.lr_at(
        step,
        total,
        peak=config.lr,
        warmup=warmup(config, epoch),
        kind=config.schedule,
        final=config.final,
        milestones=config.milestones,
        gamma=config.gamma,
        power=config.power,
    )
