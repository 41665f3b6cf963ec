"""How weights move."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from host.dotted import is_path, meant
from host.errors import UsageError
from train.config.types import Fraction, Natural
from train.knobs import FREE, Section, idle

Schedule = Literal["cosine", "linear", "constant", "step", "poly", "onecycle"]
Decay = Annotated[float, Field(ge=0, lt=1)]

_STEPS = idle("optim.schedule", "cosine", "linear", "constant", "poly", "onecycle")
_POLY = idle("optim.schedule", "cosine", "linear", "constant", "step", "onecycle")


class Optim(Section):
    """How weights move."""

    name: Literal["sgd", "adamw", "lamb", "muon"] = "sgd"
    """The optimizer; LAMB and Muon are timm's. Muon moves matrices and kernels, AdamW the rest."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    """Peak learning rate."""
    momentum: Decay = Field(0.9, json_schema_extra=idle("optim.name", "adamw", "lamb"))
    """SGD, Muon: momentum."""
    nesterov: bool = Field(True, json_schema_extra=idle("optim.name", "adamw", "lamb"))
    """SGD, Muon: Nesterov's form of momentum."""
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), json_schema_extra=idle("optim.name", "sgd"))
    """AdamW, LAMB, Muon's AdamW: decay of the two moments."""
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, json_schema_extra=idle("optim.name", "sgd"))
    """AdamW, LAMB, Muon's AdamW: added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    """Weight decay; biases and norm layers (tensors of one dimension) have none."""
    ema: Decay = 0.0
    """Average the weights over steps with this decay, such as 0.999; it is measured. 0: no."""
    offload: bool = Field(False, json_schema_extra=FREE)
    """On GPUs, keep the optimizer's state in the host's memory between updates: the same bits."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Each layer learns at the rate of the next one, nearer to the output, times this."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Scale the gradient down to this norm where it is larger; null: never."""
    warmup: Natural = 0
    """Steps of linear rise to the peak; `onecycle` rises by a cosine, for 30 % of the run if 0."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """The same in epochs."""
    schedule: Schedule = "cosine"
    """Shape of the learning rate after the warm-up."""
    final: Fraction = Field(0.0, json_schema_extra=idle("optim.schedule", "constant", "step"))
    """Where cosine, linear, poly and onecycle end, as a share of the peak."""
    milestones: list[Fraction] = Field([0.5, 0.75], json_schema_extra=_STEPS)
    """`step` schedule: when to multiply by gamma, as shares of the run."""
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.1, json_schema_extra=_STEPS)
    """`step` schedule: the factor."""
    power: Annotated[float, Field(gt=0)] = Field(2.0, json_schema_extra=_POLY)
    """`poly` schedule: the power of what is left of the run."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target that is spread over all classes."""
    loss: str | None = None
    """bce, or my_package.losses:function (logits, labels) → losses; null: cross-entropy."""
    class_weights: Literal["balanced"] | None = None
    """`balanced`: a sample's loss counts the more, the fewer its class has."""

    @model_validator(mode="after")
    def _warmup(self) -> "Optim":
        if self.warmup and self.warmup_epochs:
            raise UsageError("optim.warmup and optim.warmup_epochs are both set", "set one of them")
        return self

    @model_validator(mode="after")
    def _offload(self) -> "Optim":
        if self.offload and self.name == "sgd" and not self.momentum:
            raise UsageError(
                "optim.offload does nothing for SGD without momentum, which keeps nothing",
                "take it away, or add --optim.offload false",
            )
        return self

    @model_validator(mode="after")
    def _own_loss(self) -> "Optim":
        if self.loss in (None, "bce"):
            return self
        if not is_path(self.loss or ""):
            raise UsageError(
                f"optim.loss: {self.loss} names no function",
                meant(self.loss or "") or "say bce, or name one of yours: my_package.losses:focal",
            )
        if self.label_smoothing:
            raise UsageError(
                f"optim.label_smoothing {self.label_smoothing:g} does nothing with a loss of your"
                " own",
                "take it away; where a file sets it, add --optim.label_smoothing 0",
            )
        return self
