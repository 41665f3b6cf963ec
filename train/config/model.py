"""What learns."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from train.knobs import Section, idle


class Model(Section):
    """What learns."""

    name: str = "convnet"
    """convnet, smallnet, dropnet, mlp, a classifier of torchvision, or my_package.nets:build."""
    weights: str | None = None
    """Start from torchvision's weights (e.g. DEFAULT) or from a model.safetensors file."""
    prefix: str | None = Field(None, json_schema_extra=idle("model.weights", None))
    """What all names in the weights' file begin with and the model's do not, such as `module.`."""
    freeze: list[str] = Field([])
    """Parts that are not trained, by name, such as conv1; their batch norm stays as it is."""
    stem: Literal["standard", "small"] = "standard"
    """`small`: first convolution 3×3, stride 1, no pooling after it; for images below 64 pixels."""
    channels_last: bool = False
    """Store activations channel by channel in memory: faster on GPUs with FP16 or BF16."""
    compile: bool = False
    """Compile with torch.compile; needs a C compiler."""

    @property
    def file(self) -> Path | None:
        """The file that `weights` names, if it names one."""
        named = self.weights is not None and self.weights.endswith(".safetensors")
        return Path(self.weights or "") if named else None
