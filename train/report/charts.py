"""Charts as SVG, in the colours of the page that they stand in, light or dark."""

import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from train.predictions.judged import Bin

_SIZE = (4.6, 2.9)  # inches of 72 pixels: a phone's width
_POINTS = 300  # of a line; of more, several make one
_FEW = 40  # that can be marked
# What the page says for colours that nothing else has.
_TEXT, _GRID = "#0a0a01", "#0a0a02"
SERIES = tuple(f"#0a0a{n:02d}" for n in range(11, 19))
_OF_PAGE = {
    _TEXT: "currentColor",
    _GRID: "var(--grid)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES, 1)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text is text: it can be found and copied
    "svg.hashsalt": "lockstep",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _TEXT,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": _TEXT,
    "text.parse_math": False,  # a name may hold a $
    "xtick.color": _GRID,
    "xtick.labelcolor": _TEXT,
    "ytick.color": _GRID,
    "ytick.labelcolor": _TEXT,
}


@dataclass(frozen=True)
class Series:
    """A figure over steps; None where it was no number.

    Attributes:
        points: whether each is marked, as there are few.
    """

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    points: bool = False


def lines(
    every: Sequence[Series],
    resumed: Iterable[int] = (),
    *,
    scale: float = 1.0,
    from_zero: bool = False,
) -> Markup:
    """Series over steps.

    Args:
        resumed: steps at which an attempt began, which are marked.
        scale: of what is shown: 100 for shares in per cent.
        from_zero: whether the figures' axis begins there, as that of an amount should.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        for series, colour in zip(every, SERIES, strict=False):
            _draw(axes, series, colour, scale)
        for step in resumed:
            axes.axvline(step, color=_TEXT, linewidth=0.7, linestyle=(0, (2, 2)))
        if from_zero:
            axes.set_ylim(bottom=0)
        _steps(axes)
        if len(every) > 1:
            axes.legend(fontsize=9, handlelength=1.2)
        return _svg(figure)


def reliability(bins: Sequence[Bin]) -> Markup:
    """The share of right ones against the probability, with a diagonal where both are the same."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        axes.bar(
            [100 * each.low for each in bins],
            [100 * each.right for each in bins],
            width=[100 * (each.high - each.low) for each in bins],
            align="edge",
            color=SERIES[0],
            edgecolor=_GRID,
            linewidth=0.6,
        )
        axes.plot([0, 100], [0, 100], color=_TEXT, linewidth=0.8, linestyle=(0, (3, 3)))
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="probability, %", ylabel="right, %")
        return _svg(figure)


def dots(
    places: Sequence[float] | Sequence[str],
    values: Sequence[float],
    label: str,
    *,
    log: bool = False,
    best: Sequence[float] | None = None,
) -> Markup:
    """A dot for each value over its place; places that are words stand beside each other.

    Args:
        label: of the places.
        log: whether the places' axis is logarithmic.
        best: a line over the places.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        words = [place for place in places if isinstance(place, str)]
        names = list(dict.fromkeys(words))
        xs = [names.index(place) if isinstance(place, str) else place for place in places]
        axes.plot(xs, values, "o", color=SERIES[0], markersize=5, alpha=0.8)
        if best is not None:
            axes.step(xs, best, where="post", color=SERIES[1], linewidth=1.4, label="best so far")
            axes.legend(fontsize=9, handlelength=1.2, loc="lower right")
        if words:
            short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
            axes.set_xticks(range(len(names)), short, rotation=30 if len(names) > 4 else 0)
            axes.margins(x=0.15)
        elif log:
            axes.set_xscale("log")
        axes.set_xlabel(label)
        return _svg(figure)


def _draw(axes: Axes, series: Series, colour: str, scale: float) -> None:
    steps = np.array(series.steps, dtype=np.float64)
    values = scale * np.array(
        [math.nan if value is None else value for value in series.values], dtype=np.float64
    )
    marker = "o" if (series.points and len(steps) <= _FEW) or len(steps) == 1 else ""
    if len(steps) > _POINTS:
        places = [some for some in np.array_split(np.arange(len(steps)), _POINTS) if len(some)]
        # A bin without a number stays a gap.
        held = [some[np.isfinite(values[some])] for some in places]
        held = [some if len(some) else all_[:1] for some, all_ in zip(held, places, strict=True)]
        low, high = (np.array([f(values[some]) for some in held]) for f in (np.min, np.max))
        steps = np.array([steps[some].mean() for some in held])
        values = np.array([values[some].mean() for some in held])
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(
        steps, values, color=colour, linewidth=1.6, marker=marker, markersize=3.5, label=series.name
    )


def _steps(axes: Axes) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _svg(figure: Figure) -> Markup:
    """Without what a page has no use for: the file's head, and the day that it was drawn."""
    text = io.StringIO()
    with warnings.catch_warnings():
        # Fonts here may lack what the page's have: text is text.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"<style.*?</style>", "", drawn, count=1, flags=re.DOTALL)
    # The page says how wide it is.
    drawn = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    for ours, theirs in _OF_PAGE.items():
        drawn = drawn.replace(ours, theirs)
    return Markup(drawn)  # noqa: S704  (matplotlib escapes what is said in it)
