"""What is learned from."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from host import INSIDE
from train.config.types import Count, Fraction, Natural, Side
from train.knobs import FREE, Section, idle

Statistics = Annotated[list[Fraction], Field(min_length=1, max_length=4)]
Deviation = Annotated[float, Field(gt=0, le=1)]

# The command line's words are text, which a literal number is not compared with.
Channels = Annotated[Literal[1, 3], BeforeValidator(lambda v: int(v) if v in ("1", "3") else v)]

_LOCAL = ("digits", "idx", "cifar10", "cifar100", "synthetic")  # sources without picture files
_NO_FILES = idle("data.source", *_LOCAL)


def root_flag() -> str:
    """What names the folder of the data: a flag, or around a container make's variable."""
    return "DATA=DIR (data/ inside)" if INSIDE.exists() else "--data.root"


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
    balanced: bool = False
    """Draw each class equally often; an epoch is as long as ever."""
    prepare: Side | None = Field(None, json_schema_extra=_NO_FILES)
    """Scale pictures once, their shorter side to this many pixels, and keep them in cache_dir."""
    size: Side | None = None
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
