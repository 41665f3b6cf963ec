"""What probabilities say of pictures, labels and themselves, on figures that are known by hand."""

import math
import shutil

import pytest
from conftest import one_line
from hypothesis import given
from hypothesis import strategies as some

from train.predictions import judged, table
from train.predictions.table import Said


def said(number: int, label: str, predicted: str, probability: float, truth: float) -> Said:
    loss = -math.log(truth) if truth else math.inf
    return Said(number, loss, f"{number}.png", label, predicted, probability, truth)


SURE = [said(n, "cat", "cat", 0.9, 0.9) for n in range(3)] + [
    said(n, "dog", "dog", 0.7, 0.7) for n in range(3, 6)
]
WRONG = said(6, "cat", "dog", 0.95, 0.01)  # surer than of dogs
UNSURE = said(7, "dog", "cat", 0.5, 0.4)  # less sure than of cats


def test_mistakes_come_with_the_largest_loss_first() -> None:
    lost = Said(8, math.nan, "8.png", "cat", "dog", math.nan, math.nan)
    found = judged.mistakes([*SURE, UNSURE, WRONG, lost], 9)
    assert [each.number for each in found] == [8, 6, 7]
    assert judged.mistakes([*SURE, UNSURE, WRONG], 1) == [WRONG]


def test_a_label_is_doubtful_where_the_model_is_as_sure_of_another_as_it_usually_is() -> None:
    # Of cats it is sure by (0.9 · 3 + 0.01) / 4, of dogs by (0.7 · 3 + 0.4) / 4.
    assert judged.doubtful([*SURE, WRONG, UNSURE], 9) == [WRONG]
    bird = said(9, "cat", "bird", 0.99, 0.005)  # no picture is labelled so
    assert judged.doubtful([*SURE, WRONG, bird], 9) == [WRONG]
    surer = said(10, "cat", "dog", 0.97, 0.02)
    assert [each.number for each in judged.doubtful([*SURE, WRONG, surer], 9)] == [10, 6]


def test_calibration_is_that_of_the_formula() -> None:
    rows = [
        *(said(n, "a", "a", 0.95, 0.95) for n in range(8)),
        *(said(n, "b", "a", 0.95, 0.05) for n in range(2)),
        *(said(n, "a", "a", 0.5, 0.5) for n in range(10)),
    ]
    bins, error = judged.calibration(rows)
    assert [(each.count, each.right) for each in bins] == [(10, 1.0), (10, 0.8)]
    assert error == pytest.approx((0.5 + 0.15) / 2)
    assert judged.calibration([]) == ([], 0)
    lost = Said(8, math.nan, "8.png", "a", "a", math.nan, math.nan)
    assert judged.calibration([*rows, lost]) == (bins, error)


def test_the_ends_of_bins_are_theirs() -> None:
    bins, _ = judged.calibration([said(0, "a", "a", 1.0, 1.0), said(1, "a", "a", 1 / 15, 1.0)])
    assert [(each.low, each.high) for each in bins] == [(0, 1 / 15), (14 / 15, 1)]
    assert len(judged.calibration([said(0, "a", "a", 0.0, 0.0)])[0]) == 1


NAMES = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(NAMES, NAMES)
def test_a_table_is_read_as_it_was_written(tmp_path_factory, file, label) -> None:
    path = tmp_path_factory.mktemp("run")
    head = ["loss", "file", "label", "class", "probability", "label_probability"]
    rows = [table.line(head), table.line([0.25, file, label, "x", 0.5, 0.125])]
    (path / table.FILE).write_bytes("".join(rows).encode())
    assert table.read(path) == [Said(0, 0.25, file, label, "x", 0.5, 0.125)]


def test_a_run_without_a_table_has_none(tmp_path) -> None:
    assert table.read(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "values to unpack"),
        ("loss,file\n", "other columns"),
        ("loss,file,label,class,probability,label_probability\n1,2\n", "values to unpack"),
        ("loss,file,label,class,probability,label_probability\nx,f,a,b,1,1\n", "float"),
    ],
)
def test_a_damaged_table_is_refused_by_name(finished, cli, tmp_path, text, says) -> None:
    run = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    (run / table.FILE).write_text(text)
    done = cli("report", "--run", run)
    assert done.code == 4
    line = one_line(done.err)
    assert "predictions.csv" in line
    assert says in line
