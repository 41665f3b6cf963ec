"""What a person sees while it trains: a live view on a terminal, a line now and then elsewhere."""

import math
import sys
import time

import psutil
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from host.text import printable
from train.record.sparkline import Curve

# Without a terminal, seconds between lines of training.
_QUIET = 10.0
# Columns and rows of a terminal for curves, and columns for the times.
_WIDE, _HIGH, _NARROW = 76, 16, 70
_WORDS = 46  # columns beside a curve
_A_SECOND = 4  # looks at the view
_GIB = 2**30


class Display:
    """Shows a run's course; of use to the main process."""

    def __init__(self, epochs: float, steps: int, best: float = -math.inf) -> None:
        """Of a run so long, whose best top-1 before this attempt was `best`."""
        self.steps = steps
        # As many digits as the figure in front of it will have.
        short = float(f"{epochs:.3g}")
        self._exact = short == round(short, 1)
        self.epochs = short if self._exact else epochs
        self.terminal = sys.stdout.isatty()
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        room = self._console.width
        elapsed = [TimeElapsedColumn(), TextColumn("left")]
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
        self._task = self._bar.add_task("epoch 0", total=steps)
        self._live = Live(self, console=self._console, refresh_per_second=_A_SECOND)
        self._last_line = time.monotonic()
        self._losses, self._top1 = Curve(), Curve()
        self._trained = self._measured = self._speed = ""
        self._best = best
        self._process = psutil.Process()

    def __enter__(self) -> "Display":
        if self.terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.terminal:
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The view as it is now: curves above the bar, where there is room."""
        if console.width >= _WIDE and console.height >= _HIGH and self._trained:
            yield self._curves(console.width)
        yield self._bar

    def _curves(self, width: int) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        room = width - _WORDS
        table.add_column(width=6, style="dim")
        table.add_column(width=room)
        table.add_column(ratio=1, no_wrap=True)
        table.add_row("loss", Text(self._losses.sparkline(room), "cyan"), self._trained)
        if self._measured:
            table.add_row("top-1", Text(self._top1.sparkline(room), "green"), self._measured)
        memory = self._process.memory_info().rss / _GIB
        table.add_row("speed", "", f"{self._speed}   memory {memory:.1f} GiB")
        return table

    def _where(self, epoch: float, width: int = 0) -> str:
        if self._exact:
            return f"epoch {epoch:{width}.1f}/{self.epochs:g}"
        return f"epoch {epoch:{width}.2f}/{self.epochs:.2f}"

    def begin(self, step: int) -> None:
        """Say that `step` steps were done before: they do not count for the time left."""
        where = self._where(self.epochs * step / self.steps) if step else "epoch 0"
        self._bar.reset(self._task, completed=step, description=where)

    def say(self, text: str) -> None:
        """One line, above the view."""
        self._console.print(printable(text), markup=False)
        sys.stdout.flush()

    def moved(self, step: int) -> None:
        """So many steps were done; their figures come later."""
        if self.terminal:
            self._bar.update(self._task, completed=step)

    def train(self, step: int, epoch: float, loss: float, accuracy: float, speed: float) -> None:
        """The figures of a training step; `speed` in samples per second."""
        where = self._where(epoch)
        self._losses.add(loss)
        self._trained = f"{loss:.4f}   batch accuracy {100 * accuracy:.1f} %"
        self._speed = f"{speed:,.0f} samples/s"
        self._bar.update(self._task, completed=step, description=where)
        now = time.monotonic()
        if not self.terminal and now - self._last_line > _QUIET:
            self._last_line = now
            figures = f"loss {loss:.4f}  top-1 {100 * accuracy:5.1f} %  {speed:,.0f} samples/s"
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
        self._top1.add(top1)
        self._best = max(self._best, top1)
        self._measured = f"{100 * top1:.2f} %   best {100 * self._best:.2f} %"
        self._bar.update(self._task, description=self._where(epoch))
        self.say(
            f"{self._where(epoch, 5)}  step {step:>5}/{self.steps}"
            f"  validation loss {loss:.4f}  top-1 {100 * top1:6.2f} %{'  best' * best}"
        )
