"""What was said of each validation picture at a run's end: predictions.csv."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from train.data import Split
from train.measure import Outcomes
from train.record import files

FILE = "predictions.csv"
_DIGITS = 9  # of a probability: as many as FP32 has


def write(path: Path, split: Split, classes: list[str], outcomes: Outcomes) -> None:
    """A line for each picture: its name, label, class, the probabilities of both, and the loss."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["file", "label", "class", "probability", "label_probability", "loss"])
    table.writerows(_rows(split, classes, outcomes))
    files.write_whole(path, [text.getvalue().encode(errors="surrogateescape")])


def rounded(share: float) -> float:
    """A probability, to the digits that are written of it."""
    return float(f"{share:.{_DIGITS}g}")


def _rows(split: Split, classes: list[str], outcomes: Outcomes) -> Iterator[list[object]]:
    columns = (outcomes.predicted, outcomes.probability, outcomes.truth, outcomes.losses)
    values = zip(split.labels.tolist(), *(each.tolist() for each in columns), strict=True)
    for number, (label, predicted, probability, truth, loss) in enumerate(values):
        name, shares = split.pictures.name(number), map(rounded, (probability, truth, loss))
        yield [name, classes[label], classes[predicted], *shares]
