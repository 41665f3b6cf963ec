"""What is kept, measured and shown while a run goes on."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from train.config.types import Count, Natural, Side
from train.knobs import FREE, Section, idle

# YAML reads a bare `off` as false.
Mode = Annotated[
    Literal["off", "offline", "online"], BeforeValidator(lambda v: "off" if v is False else v)
]


class Checkpoint(Section):
    """What is kept of a run on its way."""

    every: Count | None = Field(None, json_schema_extra=FREE)
    """Steps between checkpoints; null: once an epoch. The end always has one."""
    keep: Count = Field(3, json_schema_extra=FREE)
    """How many of the newest to keep; the best one is kept besides."""
    background: bool = Field(True, json_schema_extra=FREE)
    """Write them while training goes on, which takes a copy of weights and optimizer state in the
    host's memory; false: train on when they are written."""


class Eval(Section):
    """How often and how the validation set is measured."""

    every: Count | None = None
    """Steps between evaluations; null: once an epoch. The end always has one."""
    patience: Natural = 0
    """End the run after so many evaluations without a better top-1; 0: never."""
    batch_size: Count | None = None
    """Images per forward pass; null: as many as a lane holds."""
    size: Side | None = None
    """Scale the shorter side of validation images to this many pixels; null: data.size."""
    crop: Side | None = None
    """Crop the middle of them, so many pixels wide and high; null: as large as they are scaled."""


class Log(Section):
    """What is written down on the way."""

    every: Count = Field(10, json_schema_extra=FREE)
    """Steps between lines in metrics.jsonl and points in TensorBoard."""
    report: bool = Field(True, json_schema_extra=FREE)
    """Write report.html at the end (`make report`: at any time), and pictures for TensorBoard."""


class Wandb(Section):
    """Weights & Biases."""

    mode: Mode = Field("off", json_schema_extra=FREE)
    """`offline` writes beside the run, for `wandb sync`; `online` needs WANDB_API_KEY."""
    project: str = Field("lockstep", json_schema_extra=FREE | idle("wandb.mode", "off"))
    """Project to file the run under."""
    entity: str | None = Field(None, json_schema_extra=FREE | idle("wandb.mode", "off"))
    """User or team; null: the key's own."""
