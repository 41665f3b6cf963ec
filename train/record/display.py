"""What a person sees while it trains: a bar on a terminal, a line now and then elsewhere."""

import math
import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from host.text import printable

# Without a terminal, seconds between lines of training.
_QUIET = 10.0
# Columns of a terminal for all figures, and for the loss alone.
_WIDE, _NARROW = 110, 70


class Display:
    """Shows a run's course; of use to the main process."""

    def __init__(self, epochs: float, steps: int) -> None:
        self.steps = steps
        # As many digits as the figure in front of it will have.
        short = float(f"{epochs:.3g}")
        self._exact = short == round(short, 1)
        self.epochs = short if self._exact else epochs
        self.terminal = sys.stdout.isatty()
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        room = self._console.width
        elapsed = [TextColumn("{task.fields[figures]}"), TimeElapsedColumn(), TextColumn("left")]
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # what the others leave of the line
            MofNCompleteColumn(),
            *(elapsed if room >= _NARROW else [TextColumn("left")]),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            disable=not self.terminal,
        )
        self._task = self._bar.add_task("epoch 0", total=steps, figures="")
        self._last_line = time.monotonic()

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _where(self, epoch: float, width: int = 0) -> str:
        if self._exact:
            return f"epoch {epoch:{width}.1f}/{self.epochs:g}"
        return f"epoch {epoch:{width}.2f}/{self.epochs:.2f}"

    def begin(self, step: int) -> None:
        """Say that `step` steps were done before: they do not count for the time left."""
        where = self._where(self.epochs * step / self.steps) if step else "epoch 0"
        self._bar.reset(self._task, completed=step, description=where)

    def say(self, text: str) -> None:
        """One line, above the bar."""
        self._console.print(printable(text), markup=False)
        sys.stdout.flush()

    def moved(self, step: int) -> None:
        """So many steps were done; their figures come later."""
        if self.terminal:
            self._bar.update(self._task, completed=step)

    def train(self, step: int, epoch: float, loss: float, accuracy: float, speed: float) -> None:
        """The figures of a training step; `speed` in samples per second."""
        figures = f"loss {loss:.4f}  acc {100 * accuracy:5.1f} %  {speed:,.0f} samples/s"
        where = self._where(epoch)
        room = self._console.width
        short = figures if room >= _WIDE else f"loss {loss:.4f}" if room >= _NARROW else ""
        self._bar.update(self._task, completed=step, description=where, figures=short)
        now = time.monotonic()
        if not self.terminal and now - self._last_line > _QUIET:
            self._last_line = now
            self.say(f"{where}  step {step}/{self.steps}  {figures}")

    def measuring(self) -> None:
        """The bar stands still from now on, and says why."""
        self._bar.update(self._task, description="validating")

    def evaluation(
        self, step: int, epoch: float, figures: dict[str, float | None], *, best: bool
    ) -> None:
        """The figures of an evaluation: loss and top1 are shown."""
        loss, top1 = (math.nan if v is None else v for v in (figures["loss"], figures["top1"]))
        self._last_line = time.monotonic()
        self._bar.update(self._task, description=self._where(epoch))
        self.say(
            f"{self._where(epoch, 5)}  step {step:>5}/{self.steps}"
            f"  validation loss {loss:.4f}  top-1 {100 * top1:6.2f} %{'  best' * best}"
        )
