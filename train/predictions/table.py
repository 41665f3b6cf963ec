"""What was said of each validation picture at a run's end: predictions.csv."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from host.errors import CheckpointError
from train.data import Split
from train.measure import Outcomes
from train.record import files

FILE = "predictions.csv"
_DIGITS = 9  # of a probability: as many as FP32 has


def write(path: Path, split: Split, classes: list[str], outcomes: Outcomes) -> None:
    """A line for each picture: loss, name, label, class, and the probabilities of the two.

    Raises:
        CheckpointError: it cannot be written.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["loss", "file", "label", "class", "probability", "label_probability"])
    table.writerows(_rows(split, classes, outcomes))
    try:
        files.write_whole(path, [text.getvalue().encode(errors="surrogateescape")])
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}",
            "make room or mend the disk, then add --resume",
        ) from error


def rounded(share: float) -> float:
    """A probability, to the digits that are written of it."""
    return float(f"{share:.{_DIGITS}g}")


def _rows(split: Split, classes: list[str], outcomes: Outcomes) -> Iterator[list[object]]:
    columns = (outcomes.predicted, outcomes.probability, outcomes.truth, outcomes.losses)
    values = zip(split.labels.tolist(), *(each.tolist() for each in columns), strict=True)
    for number, (label, predicted, probability, truth, loss) in enumerate(values):
        names = split.pictures.name(number), classes[label], classes[predicted]
        yield [rounded(loss), *names, rounded(probability), rounded(truth)]
