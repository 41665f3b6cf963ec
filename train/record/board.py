"""TensorBoard: training and validation as two runs, whose figures of one name share a chart."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from train.config import Config, knobs
from train.experiment import value
from train.knobs import is_free

_METRICS = ("loss", "top1")


class Board:
    """Writes figures as TensorBoard's events. Use it in a `with`.

    Args:
        root: directory of the events.
        step: updates done already; points of later ones, from an earlier attempt, are hidden.
    """

    def __init__(self, root: Path, config: Config, step: int) -> None:
        with ExitStack() as stack:
            stack.enter_context(_quiet())
            self._writers = {}
            for name in ("train", "validation"):
                writer = SummaryWriter(str(root / name), purge_step=step + 1)
                stack.callback(writer.close)
                self._writers[name] = writer
            if step == 0:
                self._describe(config)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, kind: str, step: int, figures: Mapping[str, float | None]) -> None:
        """Points of one step; `kind` is train, eval or health.

        Raises:
            OSError: they cannot be written.
        """
        writer = self._writers["validation" if kind == "eval" else "train"]
        for name, point in figures.items():
            if point is not None:
                # A batch's accuracy is its top-1, as an evaluation has it.
                tag = "top1" if (kind, name) == ("train", "accuracy") else name
                tag = f"health/{tag}" if kind == "health" else tag
                writer.add_scalar(tag, point, step)

    def picture(self, name: str, picture: Image.Image, step: int) -> None:
        """A picture of one step, RGB.

        Raises:
            OSError: it cannot be written.
        """
        writer = self._writers["validation" if name == "confusion" else "train"]
        writer.add_image(name, np.asarray(picture), step, dataformats="HWC")

    def _describe(self, config: Config) -> None:
        """Name the knobs that decide the result, for the page of hyper-parameters."""
        given = {name: value(config, name) for name, field in knobs() if not is_free(field)}
        plain = {
            name: one if isinstance(one, (bool, int, float, str)) else json.dumps(one)
            for name, one in given.items()
        }
        writer = self._writers["validation"]
        for summary in hparams(plain, dict.fromkeys(_METRICS))[:2]:
            writer._get_file_writer().add_summary(summary)


@contextmanager
def _quiet() -> Iterator[None]:
    """No traceback from TensorBoard's thread: its error is raised again where it is next used."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, OSError):
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
