"""What became of each class: shares, and what was taken for what."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

Counts = np.ndarray[Any, np.dtype[np.int64]]

_ROWS = 200  # of classes
_CELLS = 30  # of a matrix that is shown in figures
_PAIRS = 20
_INK = (0, 104, 201)
_LARGEST = 1000  # pixels


@dataclass(frozen=True)
class Class:
    """One class; fractions from 0 to 1, None where nothing is to be divided by.

    Attributes:
        number: its label.
        pictures: how many have it as their label.
        recall: the share of these that were recognised.
        precision: the share of those that were taken for it that are of it.
    """

    number: int
    name: str
    pictures: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Confusion:
    """Counts; row: truth, column: prediction.

    Attributes:
        rows: of each class its counts, and the share of its pictures that each is; [] where there
            are too many.
        picture: address of a picture of the shares, where there are.
    """

    rows: list[tuple[str, list[tuple[int, float]]]]
    picture: str | None


def counted(result: dict[str, Any]) -> Counts | None:
    """The matrix of a result; None where there is none, or it does not fit the classes."""
    metrics, names = result.get("metrics", {}), result.get("classes", [])
    shares = metrics.get("per_class")
    if "confusion" not in metrics or not isinstance(shares, list) or len(shares) != len(names):
        return None
    try:
        counts = np.array(metrics["confusion"], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):  # a file may hold anything
        return None
    return counts if counts.shape == (len(names), len(names)) else None


def classes(result: dict[str, Any], counts: Counts | None) -> tuple[list[Class], int]:
    """The classes that were recognised least first, or all in order where they are few; and how
    many there are.
    """
    if counts is None:
        return [], 0
    metrics, names = result["metrics"], result["classes"]
    columns, rows = counts.sum(0).tolist(), counts.sum(1).tolist()
    every = [
        Class(
            number,
            str(name),
            rows[number],
            metrics["per_class"][number],
            int(counts[number, number]) / columns[number] if columns[number] else None,
        )
        for number, name in enumerate(names)
    ]
    if len(every) > _ROWS:
        every.sort(key=lambda each: (each.recall is None, each.recall))
    return every[:_ROWS], len(every)


def confusion(result: dict[str, Any], counts: Counts | None) -> Confusion | None:
    """The matrix; None where there is none."""
    if counts is None:
        return None
    shares = _shares(counts)
    if len(counts) > _CELLS:
        return Confusion([], _picture(shares))
    cells = [
        list(zip(row, share, strict=True))
        for row, share in zip(counts.tolist(), shares.tolist(), strict=True)
    ]
    names = [str(name) for name in result["classes"]]
    return Confusion(list(zip(names, cells, strict=True)), None)


def confused(result: dict[str, Any], counts: Counts | None) -> list[tuple[str, str, int]]:
    """What was most often taken for what, and how often."""
    if counts is None:
        return []
    names, (rows, columns) = result["classes"], np.nonzero(counts)
    wrong = rows != columns
    rows, columns = rows[wrong], columns[wrong]
    order = np.argsort(-counts[rows, columns], kind="stable")[:_PAIRS]
    pairs = zip(rows[order].tolist(), columns[order].tolist(), strict=True)
    return [(str(names[a]), str(names[b]), int(counts[a, b])) for a, b in pairs]


def drawn(confusion: Sequence[Sequence[int]]) -> Image.Image:
    """A matrix of counts as an opaque picture, the darker the larger the share of a row."""
    ink = _ink(_shares(np.array(confusion, dtype=np.int64)))
    return Image.alpha_composite(Image.new("RGBA", ink.size, "white"), ink).convert("RGB")


def _shares(counts: Counts) -> "np.ndarray[Any, Any]":
    shares: np.ndarray[Any, Any] = counts / np.maximum(1, counts.sum(1, keepdims=True))
    return shares


def _ink(shares: "np.ndarray[Any, Any]") -> Image.Image:
    """The ink is the same, light or dark; a share is how much of it there is."""
    # What is rare must be seen too.
    depth = np.round(255 * np.sqrt(shares)).astype(np.uint8)
    alpha = Image.fromarray(depth)
    side = max(1, min(_LARGEST, len(shares)))
    if side < len(shares):
        alpha = alpha.resize((side, side), Image.Resampling.BOX)
    factor = max(1, 400 // side)
    alpha = alpha.resize((factor * side, factor * side), Image.Resampling.NEAREST)
    picture = Image.new("RGBA", alpha.size, (*_INK, 0))
    picture.putalpha(alpha)
    return picture


def _picture(shares: "np.ndarray[Any, Any]") -> str:
    picture = _ink(shares)
    data = io.BytesIO()
    picture.save(data, "WEBP", lossless=True)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
