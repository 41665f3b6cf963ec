"""What saves a run on its way: everything with state, by name, and the directory it goes to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from host.errors import CheckpointError, first_line
from train.learn import weights
from train.record import alive, files
from train.record.checkpoint import Checkpoint
from train.record.facts import Facts
from train.record.rundir import name_of
from train.record.spread import Spread
from train.record.stateful import Stateful
from train.record.verification import MODEL
from train.record.writer import prune, write

Held = tuple[dict[str, Tensor], dict[str, dict[str, Any]]]
"""Weights and buffers by name; the state of each other thing that has some, by name."""


class Saver:
    """Writes a run's checkpoints, and puts one's content in place.

    A thing with state registers by name; it then stands in each checkpoint, and is restored.

    Args:
        root: where checkpoints go.
        keep: how many of the newest stay.
        facts: what each checkpoint says beside the run's state.
    """

    def __init__(self, root: Path, keep: int, model: nn.Module, facts: Facts) -> None:
        self.root, self.keep, self.model, self.facts = root, keep, model, facts
        self._parts: dict[str, Stateful] = {}

    def register(self, name: str, part: Stateful) -> None:
        """Keep the state of `part` in checkpoints, as `name`.

        Raises:
            ValueError: there is a part of this name.
        """
        if name in (MODEL, *self._parts):
            raise ValueError(f"there is a part named {name} already")
        self._parts[name] = part

    def held(self, *, copy: bool = False) -> Held:
        """The weights and all other state, as they are now.

        Args:
            copy: in the host's memory, where they stay as they are while training goes on.
        """
        keep = weights.copied if copy else dict
        # One after another: what is gathered from shards is given back before the next comes.
        model = weights.copied(self.model.state_dict()) if copy else self.model.state_dict()
        return model, {name: keep(part.state_dict()) for name, part in self._parts.items()}

    def save(
        self, state: Mapping[str, Any], held: Held | None = None, spread: Spread | None = None
    ) -> None:
        """Write a checkpoint of `state` (it holds `step` and `best_step`), then prune.

        Args:
            held: what `held` gave; None: as it is now.
            spread: where each process writes its part.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are untouched.
        """
        main = spread is None or spread.part == 0
        if main:
            alive.check(self.root.parent)
        model, parts = held or self.held()
        content = {**state, **self.facts.written()}
        write(self.root, state["step"], model, parts, content, spread=spread)
        if main:
            prune(self.root, self.keep)

    def restore(self, found: Checkpoint) -> None:
        """Put the weights and all registered state in place.

        Raises:
            CheckpointError: the model is another one, or other things had state.
        """
        found.restore_model(self.model)
        if found.parts.keys() != self._parts.keys():
            has, wants = (", ".join(sorted(names)) for names in (found.parts, self._parts))
            raise CheckpointError(
                f"{found.path} holds the state of {has}, and this run has {wants}",
                "use the experiment and the precision it was made with",
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(dict(found.parts[name]))
            except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
                raise CheckpointError(
                    f"{found.path} holds no state of the {name} that fits: {first_line(error)}",
                    "use the experiment it was made with, or an older checkpoint",
                ) from error

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
