"""What was said of each validation picture at a run's end: predictions.csv."""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from host import regular
from host.errors import CheckpointError
from train.data import Split
from train.measure import Outcomes
from train.record import files

FILE = "predictions.csv"
_COLUMNS = ["loss", "file", "label", "class", "probability", "label_probability"]
_DIGITS = 9  # of a probability: as many as FP32 has
_MOST = 4 << 30  # bytes


@dataclass(frozen=True)
class Said:
    """Of one picture.

    Attributes:
        number: its place in the validation split.
        loss: in nats.
        predicted: the most probable class.
        probability, truth: of that class, and of the label.
    """

    number: int
    loss: float
    file: str
    label: str
    predicted: str
    probability: float
    truth: float


def write(path: Path, split: Split, classes: list[str], outcomes: Outcomes) -> None:
    """A line for each picture: loss, name, label, class, and the probabilities of the two.

    Raises:
        CheckpointError: it cannot be written.
    """
    text = line(_COLUMNS) + "".join(map(line, _rows(split, classes, outcomes)))
    try:
        files.write_whole(path, [text.encode(errors="surrogateescape")])
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}",
            "make room or mend the disk, then add --resume",
        ) from error


def read(run: Path) -> list[Said] | None:
    """What a run's table says, in the order of its validation split; None where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path = run / FILE
    try:
        # A file's name may hold anything, the ends of lines too.
        text = os.fsdecode(regular.read(path, _MOST))
        head, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        if head != _COLUMNS:
            raise ValueError("it has other columns")
        return [
            Said(number, float(loss), file, label, predicted, float(probability), float(truth))
            for number, (loss, file, label, predicted, probability, truth) in enumerate(rows)
        ]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot read {path}: {why}", "restore it from a copy") from error


def line(values: Iterable[object]) -> str:
    """Values as a line of a table."""
    text = io.StringIO()
    # With this end, Python's older versions quote a name that has a \r in it too.
    csv.writer(text, lineterminator="\r\n").writerow(values)
    return f"{text.getvalue()[:-2]}\n"


def rounded(share: float) -> float:
    """A probability, to the digits that are written of it."""
    return float(f"{share:.{_DIGITS}g}")


def _rows(split: Split, classes: list[str], outcomes: Outcomes) -> Iterator[list[object]]:
    columns = (outcomes.predicted, outcomes.probability, outcomes.truth, outcomes.losses)
    values = zip(split.labels.tolist(), *(each.tolist() for each in columns), strict=True)
    for number, (label, predicted, probability, truth, loss) in enumerate(values):
        names = split.pictures.name(number), classes[label], classes[predicted]
        yield [rounded(loss), *names, rounded(probability), rounded(truth)]
