"""What learns."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from host.dotted import TIMM
from host.errors import UsageError
from train.knobs import FREE, Section, idle

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(@.+)?")
_UNSAFE = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")

# Of a checkpoint, and of a run.
# The average, where there is one, is what the run measured.
_IN_FOLDERS = tuple(
    f"{folder}{name}.safetensors"
    for folder in ("", "checkpoints/best/")
    for name in ("ema", "model")
)


class Model(Section):
    """What learns."""

    name: str = "convnet"
    """convnet, smallnet, resnet9, dropnet, mlp, torchvision's, timm:NAME, or my_nets:build."""
    weights: str | None = None
    """Start from DEFAULT (those of the model's library), a .safetensors file, or a hub id."""
    prefix: str | None = Field(None, json_schema_extra=idle("model.weights", None))
    """What all names in the weights' file begin with and the model's do not, such as `module.`."""
    freeze: list[str] = Field([])
    """Parts that are not trained, by name, such as conv1; their batch norm stays as it is."""
    drop_path: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Stochastic depth: share of samples without the last residual branch; null: the model's."""
    stem: Literal["standard", "small"] = "standard"
    """`small`: first convolution 3×3, stride 1, no pooling after it; for images below 64 pixels."""
    channels_last: bool = False
    """Store activations channel by channel in memory: faster on GPUs with FP16 or BF16."""
    compile: bool = False
    """Compile with torch.compile; needs a C compiler."""
    activation_checkpointing: bool = Field(False, json_schema_extra=FREE)
    """Keep each block's input alone for the backward pass: less memory, slower, the same bits."""

    @model_validator(mode="after")
    def _known_weights(self) -> "Model":
        said = self.weights
        _check_folder(said)
        if self.prefix is not None and said and self.file is None and self.hub_id is None:
            raise UsageError(
                f"model.prefix does nothing with model.weights: {said}: it is about the names in a"
                " file",
                "take it away",
            )
        if said is None or self.file is not None or self.hub_id is not None:
            return self
        if said.endswith(_UNSAFE) and (not _HUB_ID.fullmatch(said) or Path(said).exists()):
            raise UsageError(
                f"model.weights: {said} may run code when it is read, so only .safetensors files"
                " are",
                "write its tensors anew: docs/experiments.md, Pretrained weights",
            )
        if "/" in said:
            beside = sorted(Path(said).parent.glob("*.safetensors"))
            raise UsageError(
                f"model.weights: {said} is neither a .safetensors file nor a hub id (owner/name)",
                f"name one of them{f', such as {beside[0]}' if beside else ''}",
            )
        return self

    @model_validator(mode="after")
    def _kept(self) -> "Model":
        if self.compile and self.activation_checkpointing:
            raise UsageError(
                "model.compile with model.activation_checkpointing: the compiler chooses by itself"
                " what it keeps",
                "drop one of the two",
            )
        return self

    @model_validator(mode="after")
    def _tagged(self) -> "Model":
        name, _, tag = (self.in_timm or "").partition(".")
        if tag and self.weights != "DEFAULT":
            raise UsageError(
                f"model.name: timm:{name}.{tag} names weights, and model.weights is"
                f" {json.dumps(self.weights)}",
                f"add --model.weights DEFAULT, or say timm:{name}",
            )
        return self

    @property
    def file(self) -> Path | None:
        """The file that `weights` names, if it names one."""
        named = self.weights is not None and self.weights.endswith(".safetensors")
        return Path(self.weights or "") if named else None

    @property
    def hub_id(self) -> str | None:
        """The repository that `weights` names, if it does: owner/name, or owner/name@revision."""
        said = self.weights or ""
        named = _HUB_ID.fullmatch(said) and self.file is None
        # One that lies here is not looked for there.
        return said if named and not (said.endswith(_UNSAFE) and Path(said).exists()) else None

    @property
    def in_timm(self) -> str | None:
        """What timm calls the model, if it is one of timm's."""
        return self.name[len(TIMM) :] if self.name.startswith(TIMM) else None


def _check_folder(said: str | None) -> None:
    """Refuse a folder that holds weights, which a hub's name could be taken for."""
    inside = (Path(said or "", name) for name in _IN_FOLDERS)
    file = next((each for each in inside if said and each.is_file()), None)
    if file is not None:
        raise UsageError(f"model.weights: {said} is a folder", f"name the file in it: {file}")
