"""What saves a run on its way: the parts of its checkpoints, and the directory they go to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from train import files
from train.checkpoint import name_of, prune, write
from train.errors import CheckpointError


@dataclass(frozen=True)
class Saver:
    """What a run's checkpoints are made of, and where they go.

    Attributes:
        facts: what each checkpoint records beside the run's state.
        scaler: FP16's gradient scaler, if there is one.
    """

    root: Path
    keep: int
    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None
    facts: Mapping[str, Any]

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint of `state` (it holds `step` and `best_step`), then prune.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are untouched.
        """
        scaler = self.scaler.state_dict() if self.scaler else None
        content = {**state, "scaler": scaler, **self.facts}
        write(self.root, state["step"], self.model, self.optimizer, content)
        prune(self.root, self.keep)

    def holds(self, step: int) -> bool:
        """Whether there is a checkpoint of `step`."""
        return (self.root / name_of(step)).exists()

    def mark_best(self, step: int) -> None:
        """Move `best` to the checkpoint of `step`.

        Raises:
            CheckpointError: the link could not be written.
        """
        try:
            files.point(self.root / "best", name_of(step))
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.root / 'best'}: {error.strerror}", "make room or mend the disk"
            ) from error
