"""An experiment: all its sections, and what must fit together."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from host.dotted import is_path
from host.errors import UsageError
from host.lanes import cutting, default
from train.config.augment import Augment
from train.config.data import Data
from train.config.model import Model
from train.config.optim import Optim
from train.config.progress import Checkpoint, Eval, Log, Wandb
from train.config.types import Count, Natural
from train.knobs import FREE, Section, idle, named


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
    def _partners(self) -> "Config":
        mixing = [name for name in ("mixup", "cutmix") if getattr(self.augment, name)]
        if mixing and self.micro_batch == 1:
            raise UsageError(
                f"augment.{mixing[0]} mixes samples of a lane, and each of the {self.lanes} lanes"
                f" has one of batch_size: {self.batch_size}",
                f"set --lanes {self.lanes // 2} or fewer, or a larger --batch_size",
            )
        return self

    @model_validator(mode="after")
    def _sampling(self) -> "Config":
        repeats = self.augment.repeats
        if self.batch_size % repeats or repeats == self.batch_size > 1:
            raise UsageError(
                f"augment.repeats: {repeats} with batch_size: {self.batch_size}",
                "set a batch_size that is a multiple of it, twice or more",
            )
        if self.data.balanced and self.optim.class_weights:
            raise UsageError(
                "data.balanced and optim.class_weights both make up for rare classes",
                "set one of the two",
            )
        apart = self.batch_size // repeats
        mixed = self.augment.mixup or self.augment.cutmix
        if repeats > 1 and mixed and (self.micro_batch - 1) % apart == 0:
            raise UsageError(
                f"augment.repeats: {repeats}, where each of {self.lanes} lanes would mix a sample"
                " with itself",
                "set other lanes, repeats or batch_size",
            )
        if repeats > 1 and not self.augment.varies:
            raise UsageError(
                f"augment.repeats: {repeats}, and nothing is varied: each would be the same",
                "set a knob that varies pictures, such as --augment.flip true",
            )
        return self

    @model_validator(mode="after")
    def _sizes(self) -> "Config":
        if self.augment.crop is not None and self.data.size is None:
            raise UsageError("augment.crop without data.size", "set --data.size to scale to")
        if max(self.augment.sizes or [0]) > (self.data.size or 0):
            raise UsageError(
                f"augment.sizes {self.augment.sizes}, then data.size {self.data.size}",
                "give sizes of data.size or less",
            )
        for name in ("size", "crop"):
            pixels = getattr(self.eval, name)
            if pixels is not None and self.data.size is None:
                raise UsageError(
                    f"eval.{name}: {pixels} without data.size",
                    "set --data.size, which scales the pictures of training and of evaluation, such"
                    f" as --data.size {pixels}",
                )
        scaled = self.eval.size or self.data.size or 0
        if (self.eval.crop or 0) > scaled:
            raise UsageError(
                f"eval.crop: {self.eval.crop} of images that are scaled to {scaled}",
                f"set --eval.size {self.eval.crop} or more",
            )
        several = {"augment.crop": self.augment.crop, "data.prepare": self.data.prepare}
        for name, value in several.items():
            if value is not None and self.data.cache_on == "gpu":
                raise UsageError(
                    f"data.cache_on: gpu keeps images of one size, and {name} is for pictures of"
                    " several",
                    "drop one of the two",
                )
        for name, size in (("data.size", self.data.size), ("eval.size", self.eval.size)):
            if (self.data.prepare or 1 << 14) < (size or 0):
                raise UsageError(
                    f"data.prepare: {self.data.prepare} is less than {name}: {size}",
                    "prepare pictures that are as large, or larger"
                    + ", or --eval.size null --eval.crop null" * (name == "eval.size"),
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
            if self.optim.name in ("lamb", "muon"):
                raise UsageError(
                    f"numerics: portable with optim.name: {self.optim.name}, which other CPUs"
                    " compute otherwise",
                    "use sgd or adamw, or numerics: native",
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
