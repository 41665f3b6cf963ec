"""Weights & Biases, where it is asked for: figures, pictures and the report, now or for later."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from host.errors import UsageError, first_line
from host.text import printable
from train.config import Config


class Online:
    """A run there."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, points: Mapping[str, float], step: int) -> None:
        """Figures of a step."""
        self._run.log(dict(points), step=step)

    def picture(self, name: str, picture: Image.Image, step: int) -> None:
        """A picture of a step."""
        import wandb

        self._run.log({name: wandb.Image(picture)}, step=step)

    def report(self, path: Path) -> None:
        """A file that belongs to the run, as an artifact of it."""
        import wandb

        artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)


@contextmanager
def started(run: Path, run_id: str, config: Config) -> Iterator[Online | None]:
    """The run there for as long as the block lasts; None where none is asked for.

    Args:
        run: the run directory, in which what goes there later is kept.
        run_id: its name there, the same when it goes on.
    """
    if config.wandb.mode == "off":
        yield None
        return
    import wandb  # half a second of imports that most runs need not pay

    there = wandb.init(
        project=config.wandb.project,
        entity=config.wandb.entity,
        mode=config.wandb.mode,
        dir=run,
        id=run_id,
        name=f"{config.name}/{run.resolve().name}",
        resume="allow",
        config=config.model_dump(mode="json"),
        settings=wandb.Settings(silent=True),
    )
    try:
        yield Online(there)
    finally:
        try:
            wandb.finish()
        except Exception as error:  # whatever it raises: the run itself is whole
            said = f"warning: Weights & Biases did not end well: {first_line(error)}"
            print(printable(said), file=sys.stderr)


def check_key(config: Config) -> None:
    """Say before a run starts that W&B would refuse it.

    Raises:
        UsageError: wandb.mode is online, and there is no key.
    """
    if config.wandb.mode == "online" and not (os.environ.get("WANDB_API_KEY") or _netrc()):
        raise UsageError(
            "wandb.mode is online and there is no WANDB_API_KEY",
            "put the key into .env, or use --wandb.mode offline and `wandb sync` later",
        )


def _netrc() -> bool:
    return Path(os.environ.get("NETRC", "~/.netrc")).expanduser().exists()
