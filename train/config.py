"""Every knob of an experiment: its type, range, default and one line of doc.

An experiment is a YAML file plus dotted overrides. This file says *what* is trained; where it
runs is an Accelerate config's business. `python -m train.config` prints the JSON schema that
editors use.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from host.dotted import is_path
from host.errors import UsageError
from host.lanes import cutting, default
from train.knobs import FREE, Section, idle, named

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]
Schedule = Literal["cosine", "linear", "constant", "step"]
Statistics = Annotated[list[Fraction], Field(min_length=1, max_length=4)]
Area = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Deviation = Annotated[float, Field(gt=0, le=1)]

# YAML reads a bare `off` as false.
Mode = Annotated[
    Literal["off", "offline", "online"], BeforeValidator(lambda v: "off" if v is False else v)
]

# The command line's words are text, which a literal number is not compared with.
Channels = Annotated[Literal[1, 3], BeforeValidator(lambda v: int(v) if v in ("1", "3") else v)]

_LOCAL = ("digits", "idx", "cifar10", "cifar100", "synthetic")  # sources without picture files
_NO_FILES = idle("data.source", *_LOCAL)


class Data(Section):
    """What is learned from."""

    source: str = "digits"
    """digits, folder, idx, cifar10, cifar100, synthetic, a hub id, or my_package.data:function."""
    root: str | None = Field(None, json_schema_extra=FREE | idle("data.source", "digits"))
    """Where the data lies (default for idx, cifar: data); of a hub id: where downloads are kept."""
    workers: Natural = Field(0, json_schema_extra=FREE | idle("data.cache_on", "gpu"))
    """Loader processes beside each training process; 0 loads in the training process."""
    prefetch: Count = Field(2, json_schema_extra=FREE | idle("data.workers", 0))
    """Steps that each loader process works ahead."""
    cache: Annotated[float, Field(ge=0)] = Field(1.0, json_schema_extra=FREE)
    """GiB: images of a split that take no more are decoded once, and mapped from cache_dir."""
    cache_on: Literal["host", "gpu"] = Field("host", json_schema_extra=FREE)
    """`gpu`: each GPU keeps all decoded images in its own memory, for slow ways to the GPU."""
    holdout: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, json_schema_extra=idle("data.source", "cifar10", "cifar100")
    )
    """Share of samples held out for validation where the source has no such split."""
    prepare: Annotated[int, Field(ge=1, le=1 << 14)] | None = Field(
        None, json_schema_extra=_NO_FILES
    )
    """Scale pictures once, their shorter side to this many pixels, and keep them in cache_dir."""
    size: Annotated[int, Field(ge=1, le=1 << 14)] | None = None
    """Scale the shorter side to this many pixels and crop the middle; null: as they are."""
    mean: Statistics | None = None
    """Mean of each channel, pixels from 0 to 1; null: measured on the training images."""
    std: Annotated[list[Deviation], Field(min_length=1, max_length=4)] | None = None
    """Standard deviation of each channel; null: measured on the training images."""
    channels: Channels | None = None
    """1: grey, 3: colour; null: 3 where any image has colour."""
    background: Annotated[int, Field(ge=0, le=255)] = Field(255, json_schema_extra=_NO_FILES)
    """Grey value that shows where an image is transparent: 0 is black, 255 white."""
    white: Annotated[int, Field(ge=1, le=65535)] | None = Field(None, json_schema_extra=_NO_FILES)
    """Value of white in images of more than 8 bits, such as 4095; null: their format's highest."""
    on_bad: Literal["error", "skip"] = Field("error", json_schema_extra=_NO_FILES)
    """What to do about images that cannot be read: `skip` trains without them, and lists them."""
    max_pixels: Count = Field(89_478_485, json_schema_extra=_NO_FILES)
    """Pixels that an image may have before it is scaled; one with more cannot be read."""
    cache_dir: str | None = Field(None, json_schema_extra=FREE)
    """Where decoded images are kept, and what was found out about them; null: ~/.cache/lockstep."""
    outside: bool = Field(False, json_schema_extra=FREE | _NO_FILES)
    """Let what lies in a folder (Parquet, lists, README.md) name files that lie elsewhere."""
    image_column: str | None = Field(None, json_schema_extra=_NO_FILES)
    """Column that holds the image or its file's name; null: the first that is called so."""
    label_column: str | None = Field(None, json_schema_extra=_NO_FILES)
    """Column that holds the class; null: the first class-label column, or `label`."""


class Augment(Section):
    """How each training sample is varied, from (seed, epoch, sample) alone."""

    pad: Natural = 0
    """Pad by this many pixels on each side, then crop a random window of the first size."""
    flip: bool = False
    """Mirror left to right, every second time."""
    crop: tuple[Area, Area] | None = None
    """Take a random window of this share of a picture, such as [0.08, 1], scaled to data.size."""
    cutout: Natural = 0
    """Side in pixels of a random square set to the mean; 0: none."""


class Model(Section):
    """What learns."""

    name: str = "convnet"
    """convnet, dropnet, mlp, a classification model of torchvision, or my_package.nets:build."""
    weights: str | None = None
    """Start from torchvision's weights (e.g. DEFAULT) or from a model.safetensors file."""
    prefix: str | None = Field(None, json_schema_extra=idle("model.weights", None))
    """What all names in the weights' file begin with and the model's do not, such as `module.`."""
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


_STEPS = idle("optim.schedule", "cosine", "linear", "constant")


class Optim(Section):
    """How weights move."""

    name: Literal["sgd", "adamw"] = "sgd"
    """The optimizer."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    """Peak learning rate."""
    momentum: Decay = Field(0.9, json_schema_extra=idle("optim.name", "adamw"))
    """SGD: momentum."""
    nesterov: bool = Field(True, json_schema_extra=idle("optim.name", "adamw"))
    """SGD: Nesterov's form of momentum."""
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), json_schema_extra=idle("optim.name", "sgd"))
    """AdamW: decay of the two moments."""
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, json_schema_extra=idle("optim.name", "sgd"))
    """AdamW: added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    """Weight decay; biases and norm layers (tensors of one dimension) have none."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Scale the gradient down to this norm where it is larger; null: never."""
    warmup: Natural = 0
    """Steps of linear rise to the peak."""
    schedule: Schedule = "cosine"
    """Shape of the learning rate after the warm-up."""
    final: Fraction = Field(0.0, json_schema_extra=idle("optim.schedule", "constant", "step"))
    """Where cosine and linear end, as a share of the peak."""
    milestones: list[Fraction] = Field([0.5, 0.75], json_schema_extra=_STEPS)
    """`step` schedule: when to multiply by gamma, as shares of the run."""
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.1, json_schema_extra=_STEPS)
    """`step` schedule: the factor."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target that is spread over all classes."""
    loss: str | None = None
    """my_package.losses:function (logits, labels) → loss of each sample; null: cross-entropy."""


class Checkpoint(Section):
    """What is kept of a run on its way."""

    every: Count | None = Field(None, json_schema_extra=FREE)
    """Steps between checkpoints; null: once an epoch. The end always has one."""
    keep: Count = Field(3, json_schema_extra=FREE)
    """How many of the newest to keep; the best one is kept besides."""


class Eval(Section):
    """How often and how the validation set is measured."""

    every: Count | None = None
    """Steps between evaluations; null: once an epoch. The end always has one."""
    batch_size: Count | None = None
    """Images per forward pass; null: as many as a lane holds."""


class Log(Section):
    """What is written down on the way."""

    every: Count = Field(10, json_schema_extra=FREE)
    """Steps between lines in metrics.jsonl and points in TensorBoard."""


class Wandb(Section):
    """Weights & Biases."""

    mode: Mode = Field("off", json_schema_extra=FREE)
    """`offline` writes beside the run, for `wandb sync`; `online` needs WANDB_API_KEY."""
    project: str = Field("lockstep", json_schema_extra=FREE | idle("wandb.mode", "off"))
    """Project to file the run under."""
    entity: str | None = Field(None, json_schema_extra=FREE | idle("wandb.mode", "off"))
    """User or team; null: the key's own."""


def from_batch_size(known: dict[str, Any]) -> int:
    """The default of `lanes`, once what stands before it is known."""
    return default(known["batch_size"])


class Config(Section):
    """An experiment: it decides the result, and says nothing of the hardware."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        "run", json_schema_extra=FREE
    )
    """Name of the experiment; run directories are runs/<name>/<time>-<signature>."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides initial weights, order, augmentation and dropout."""
    reproducibility: Literal["fast", "deterministic", "lockstep"] = "lockstep"
    """Same bits on any number of processes (lockstep), on the same number, or neither (fast)."""
    numerics: Literal["native", "portable"] = "native"
    """`portable`: the same bits on any x86-64 CPU with AVX2 and FMA; FP32, slower, not on GPUs."""
    batch_size: Count = 128
    """Samples per step over all processes."""
    lanes: Count = Field(default_factory=from_batch_size)
    """Parts of a batch, however many processes; not set: 8, 4, 2 or 1, of 16 samples or more."""
    epochs: Annotated[float, Field(gt=0)] = 10
    """Passes over the training set."""
    max_steps: Count | None = None
    """Stop after this many steps, where that comes before the last epoch's end."""
    tripwire: Natural = Field(50, json_schema_extra=FREE)
    """Steps between comparisons of all processes' weights, bit by bit; 0: only before saves."""
    watchdog: Natural = Field(900, json_schema_extra=FREE)
    """Seconds without progress until a run ends; at a tenth it says what it waits for; 0: never."""
    tf32: bool = Field(False, json_schema_extra=idle("numerics", "portable"))
    """Let FP32 matrix products on NVIDIA GPUs use TensorFloat-32: faster, 10 bits of mantissa."""
    data: Data = Data()
    augment: Augment = Augment()
    model: Model = Model()
    optim: Optim = Optim()
    checkpoint: Checkpoint = Checkpoint()
    eval: Eval = Eval()
    log: Log = Log()
    wandb: Wandb = Wandb()

    @model_validator(mode="after")
    def _lanes_fit(self) -> "Config":
        fits = cutting(self.batch_size, power_of_two=self.lockstep)
        if self.lanes not in fits:
            close = min(fits, key=lambda n: (abs(n - self.lanes), n))
            need = f"{'be a power of two and ' * self.lockstep}cut the batch evenly"
            raise UsageError(
                f"lanes: {self.lanes} with batch_size: {self.batch_size}, but lanes must {need}",
                f"lanes: {close} would do",
            )
        return self

    @model_validator(mode="after")
    def _own_code(self) -> "Config":
        if self.optim.loss is not None:
            if not is_path(self.optim.loss):
                raise UsageError(
                    f"optim.loss: {self.optim.loss} names no function",
                    "name one of yours: my_package.losses:focal",
                )
            if self.optim.label_smoothing:
                raise UsageError(
                    f"optim.label_smoothing {self.optim.label_smoothing:g} does nothing with a loss"
                    " of your own",
                    "take it away, or add --optim.label_smoothing 0",
                )
        return self

    @model_validator(mode="after")
    def _sizes(self) -> "Config":
        if self.augment.crop is not None:
            least, most = self.augment.crop
            if self.data.size is None:
                raise UsageError("augment.crop without data.size", "set the size to scale to")
            if least > most:
                raise UsageError(
                    f"augment.crop: {least} is more than {most}", "give the least share first"
                )
        several = {"augment.crop": self.augment.crop, "data.prepare": self.data.prepare}
        for name, value in several.items():
            if value is not None and self.data.cache_on == "gpu":
                raise UsageError(
                    f"data.cache_on: gpu keeps images of one size, and {name} is for pictures of"
                    " several",
                    "drop one of the two",
                )
        if (self.data.prepare or 1 << 14) < (self.data.size or 0):
            raise UsageError(
                f"data.prepare: {self.data.prepare} is less than data.size: {self.data.size}",
                "prepare pictures that are as large, or larger",
            )
        return self

    @model_validator(mode="after")
    def _portable(self) -> "Config":
        if self.portable:
            if self.reproducibility == "fast":
                raise UsageError(
                    "numerics: portable with reproducibility: fast, which promises no bits",
                    "use lockstep or deterministic, or numerics: native",
                )
            if self.model.compile:
                raise UsageError(
                    "numerics: portable with model.compile: the compiler writes for the CPU it is"
                    " on",
                    "drop one of the two",
                )
        return self

    @property
    def own_code(self) -> dict[str, str]:
        """Functions of the user's that it names, by knob."""
        named = {
            "model.name": self.model.name,
            "data.source": self.data.source,
            "optim.loss": self.optim.loss or "",
        }
        return {knob: name for knob, name in named.items() if is_path(name)}

    @property
    def lockstep(self) -> bool:
        """Whether any number of processes is to give the same bits."""
        return self.reproducibility == "lockstep"

    @property
    def portable(self) -> bool:
        """Whether other CPUs are to give the same bits."""
        return self.numerics == "portable"

    @property
    def micro_batch(self) -> int:
        """Samples in a lane."""
        return self.batch_size // self.lanes

    @property
    def eval_batch(self) -> int:
        """Samples in a forward pass of an evaluation."""
        return self.eval.batch_size or self.micro_batch


def knobs() -> Iterator[tuple[str, FieldInfo]]:
    """Every knob under its dotted name."""
    return named(Config)


def schema() -> str:
    """The JSON schema of an experiment file, as configs/schema.json holds it."""
    return json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
