"""Parameter groups and the optimizer; the learning rate is set by the loop from `lr_at`."""

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from host.errors import UsageError
from train.config import Config, Optim
from train.learn import schedule
from train.learn.layers import depths
from train.learn.offload import offload

OWN = "torch's choice"
SHARE = "lr_share"  # of a group of parameters: the share of the learning rate that it learns at


def build(experiment: Config, model: nn.Module) -> Optimizer:
    """The optimizer, with weight decay on tensors of two dimensions or more only.

    LAMB (You and others, 2019) and Muon (Jordan, 2024) are timm's. Muon moves what its rules take
    for a matrix, and AdamW (NAdam's form, with `optim.nesterov`) the rest.

    Raises:
        UsageError: there is nothing to train.
    """
    groups = _groups(experiment.optim, model)
    if not groups:
        raise UsageError(
            "no parameter of the model can be trained: all are frozen",
            "leave some of them unfrozen (requires_grad)",
        )
    if kernel(experiment) == "fused":
        _check_fused(model)
    made = _made(experiment, groups)
    if experiment.optim.offload:
        offload(made)
    return made


def _made(experiment: Config, groups: list[dict[str, Any]]) -> Optimizer:
    config = experiment.optim
    if config.name == "adamw":
        fused = kernel(experiment) == "fused" or None
        return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
    if config.name in ("lamb", "muon"):
        return _timm(config, groups)
    # Nesterov's form without momentum is an error in torch, and means plain SGD.
    nesterov = config.nesterov and config.momentum > 0
    return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov)


def _groups(config: Optim, model: nn.Module) -> list[dict[str, Any]]:
    """What is trained, by how it is: its weight decay, and how far it is from the output."""
    depth = depths(model) if config.layer_decay < 1 else {}
    found: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place, matrix = depth.get(name, 0), parameter.ndim > 1
            decay = config.weight_decay if matrix else 0.0
            new = {"params": [], "weight_decay": decay, SHARE: config.layer_decay**place}
            found.setdefault((place, not matrix), new)["params"].append(parameter)
    return [found[key] for key in sorted(found)]


def _timm(config: Optim, groups: list[dict[str, Any]]) -> Optimizer:
    # Seconds of imports.
    from timm.optim.lamb import Lamb
    from timm.optim.muon import Muon

    if config.name == "lamb":  # the loop clips gradients, for all optimizers alike
        lamb: Optimizer = Lamb(
            groups, lr=config.lr, betas=config.betas, eps=config.eps, max_grad_norm=None
        )
        return lamb
    return Muon(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )


def check_place(config: Optim, device: torch.device) -> None:
    """See, before anything is read, that what the optimizer keeps could be anywhere else.

    Raises:
        UsageError: the weights are in the host's memory as well.
    """
    if config.offload and device.type != "cuda":
        raise UsageError(
            f"optim.offload: true, and this training is on the {device.type.upper()}, in whose"
            " memory the optimizer's state is anyway",
            "--optim.offload false gives the same bits",
        )


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Let the next update be at this learning rate; layers far from the output at a share of it."""
    for group in optimizer.param_groups:
        # As `lr_at` rounds: a power may differ in its last bit between machines.
        group["lr"] = float(f"{lr * group[SHARE]:.10g}") if group[SHARE] < 1 else lr


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


def slots(config: Optim) -> list[set[str]]:
    """What the optimizer keeps of each parameter that it has moved, as torch names it: one of
    these.
    """
    adam = {"exp_avg", "exp_avg_sq"}
    if config.name == "lamb":  # which counts steps for a whole group
        return [adam]
    if config.name == "adamw":
        return [adam | {"step"}]
    momentum = {"momentum_buffer"}
    if config.name == "muon":
        return [momentum, adam | {"step"}]
    return [momentum if config.momentum else set()]


def copies(config: Optim) -> int:
    """Tensors of each weight's size that are kept beside it: the optimizer's, and the average."""
    return kept(config) + (config.ema > 0)


def kept(config: Optim) -> int:
    """The optimizer's alone."""
    # Of Muon's, most weights have the first.
    return len(slots(config)[0] - {"step"})


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
