"""A run's report: every figure in it is the run's own, and nothing in it asks a network."""

import json
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import DIGITS, ROOT, one_line, picture
from fault import harness

from host.errors import CheckpointError
from train.predictions import judged, table
from train.report import charts, matrix, page
from train.report.charts import Series


class Page(HTMLParser):
    """What stands in a page: exact figures with their text, addresses, elements, words."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.figures: list[tuple[str, str, str]] = []
        self.addresses: list[str] = []
        self.elements: set[str] = set()
        self.words = ""
        self._held: tuple[str, str] | None = None
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs) -> None:
        said = dict(attrs)
        self.elements.add(tag)
        self.addresses += [
            v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "action")
        ]
        if tag == "data" and "data-of" in said:
            self._held = said["data-of"], said["value"]

    def handle_data(self, data) -> None:
        self.words += data
        if self._held:
            self.figures.append((*self._held, data))
            self._held = None


def value(content, path: str):
    for name in path.split("."):
        content = content[int(name) if isinstance(content, list) else name]
    return content


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def test_every_figure_is_that_of_result_json(finished) -> None:
    result = json.loads((finished / "result.json").read_text())
    found = Page(finished / page.FILE)  # as the training left it
    names = {name for name, _, _ in found.figures}
    assert {"metrics.top1", "metrics.loss", "best.step", "steps", "metrics.per_class.9"} <= names
    for name, exact, shown in found.figures:
        known = value(result, name)
        assert json.loads(exact) == known, name
        if shown.endswith("%"):
            assert shown == f"{100 * known:.2f} %", name
        else:
            assert float(shown.replace(",", "")) == pytest.approx(known, rel=0.5, abs=1e-4), name
    cells = {name: json.loads(exact) for name, exact, _ in found.figures}
    for row, counts in enumerate(result["metrics"]["confusion"]):
        for column, count in enumerate(counts):
            assert cells.get(f"metrics.confusion.{row}.{column}", 0) == count
    assert result["weights_sha256"] in found.words
    assert f"make reproduce RUN={finished}" in found.words


def test_nothing_in_it_asks_a_network(finished) -> None:
    found, text = Page(finished / page.FILE), (finished / page.FILE).read_text()
    assert not found.elements & {"script", "link", "iframe", "object", "embed", "form", "base"}
    assert all(each.startswith(("data:image/", "#")) for each in found.addresses)
    assert all(each.startswith("#") for each in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert len(text) < 3_000_000


def test_mistakes_are_shown_with_their_pictures(finished) -> None:
    said = table.read(finished)
    worst = judged.mistakes(said, 64)
    found = Page(finished / page.FILE)
    assert len(worst) == 64  # of a model that knows little
    assert sum(each.startswith("data:image/png") for each in found.addresses) >= 64
    for each in worst:
        assert each.file in found.words
    text = (finished / page.FILE).read_text()
    places = [text.index(f">{each.file}<") for each in worst]
    assert places == sorted(places)


def test_it_is_written_again_when_asked(copied, cli) -> None:
    before = (copied / page.FILE).read_text()
    (copied / page.FILE).unlink()
    done = cli("report", "--run", copied)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"report in {copied / page.FILE}\n"
    again = (copied / page.FILE).read_text()
    # But for the run's path, and its end, which was written before the report was.
    assert len(again) == pytest.approx(len(before), abs=2000)
    assert Page(copied / page.FILE).figures


@pytest.mark.slow
def test_without_its_data_it_has_no_pictures_and_says_so(folder, cli, tmp_path) -> None:
    data = shutil.copytree(folder, tmp_path / "data")
    words = ["--data.source", "folder", "--data.root", data, "--data.size", 12, "--batch_size", 8]
    more = ["--lanes", 2, "--model.name", "convnet", "--epochs", 1, "--run", tmp_path / "run"]
    assert cli("fit", *words, *more).code == 0
    assert not (tmp_path / "run" / page.FILE).exists()  # the suite asks for none
    (data / "train" / "light" / "more.png").write_bytes(
        next((data / "train" / "light").iterdir()).read_bytes()
    )
    done = cli("report", "--run", tmp_path / "run")
    assert done.code == 0
    assert "it has no pictures: the data is not what the run was trained on" in one_line(done.err)
    shutil.rmtree(data)
    done = cli("report", "--run", tmp_path / "run")
    assert done.code == 0
    assert str(data) in one_line(done.err)
    found = Page(tmp_path / "run" / page.FILE)
    assert str(data) in found.words
    assert found.figures
    # It moved.
    moved = shutil.copytree(folder, tmp_path / "moved")
    done = cli("report", "--run", tmp_path / "run", "--data.root", moved)
    assert (done.code, done.err) == (0, "")


def test_names_do_nothing_to_a_page(cli, tmp_path) -> None:
    odd = "<script>alert(1)<!--"
    for split in ("train", "validation"):
        for n in range(8):
            picture(tmp_path / "data" / split / odd / f'{n}"><img src=x onerror=1>.png', 60)
            picture(tmp_path / "data" / split / "{{ 7*7 }}" / f"{n}\x1b[31m\n.png", 200)
    words = ["--data.source", "folder", "--data.root", tmp_path / "data", "--batch_size", 8]
    more = ["--lanes", 2, "--model.name", "convnet", "--optim.lr", 1e-6, "--epochs", 1]
    words += [*more, "--run", tmp_path / "run", "--log.report", "true"]
    done = cli("fit", *words)
    assert done.code == 0, done.err
    found = Page(tmp_path / "run" / page.FILE)
    assert not found.elements & {"script"}
    assert all(each.startswith(("data:image/", "#")) for each in found.addresses)
    assert odd in found.words
    assert "{{ 7*7 }}" in found.words
    assert "\x1b" not in (tmp_path / "run" / page.FILE).read_text()


def test_a_run_that_was_stopped_has_a_report_too(copied, cli) -> None:
    (copied / "result.json").write_text(
        json.dumps({"status": "stopped", "steps": 10, "error": "a signal came → go on"})
    )
    done = cli("report", "--run", copied)
    assert (done.code, done.err) == (0, "")
    found = Page(copied / page.FILE)
    assert "It ended with: a signal came → go on" in found.words
    assert "Worst mistakes" not in found.words  # those are of an earlier end
    (copied / "result.json").unlink()
    assert cli("report", "--run", copied).code == 0


@pytest.mark.slow
def test_it_tells_of_attempts_and_warnings_and_no_run_fails_for_it(tmp_path, cli) -> None:
    run = tmp_path / "run"
    words = ["fit", *DIGITS, "--run", run, "--log.every", 1, "--epochs", 40]
    short = ["--max_steps", 6, "--checkpoint.every", 3, "--optim.warmup", 400]
    assert harness.start(
        tmp_path / "log", 1, [*words, *short], {0: {"at": "lane", "count": 40, "signal": 9}}
    ).wait(120) == [-9]
    (run / page.FILE).mkdir()  # it cannot be written
    done = cli(*words, *short, "--resume", "--log.report", "true")
    assert done.code == 0
    assert "warning: there is no report: cannot write" in one_line(done.err)
    assert json.loads((run / "result.json").read_text())["status"] == "finished"
    (run / page.FILE).rmdir()
    assert cli("report", "--run", run).code == 0
    found = Page(run / page.FILE)
    assert "A dashed line is where a later attempt went on." in found.words
    assert found.words.count("the warm-up takes 400 steps") == 1
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "warning"] == [0, 3]


def test_there_must_be_a_run(cli, tmp_path) -> None:
    done = cli("report", "--run", tmp_path)
    assert done.code == 2
    assert f"there is no run in {tmp_path}" in one_line(done.err)


def result_of(classes: int) -> dict:
    counts = np.eye(classes, dtype=int) * 3
    counts[1, 0] = 2
    shares = [row[c] / sum(row) if sum(row) else None for c, row in enumerate(counts.tolist())]
    return {
        "classes": [f"class {n}" for n in range(classes)],
        "metrics": {"confusion": counts.tolist(), "per_class": shares},
    }


def test_many_classes_are_a_picture_and_the_worst_of_them() -> None:
    result = result_of(1000)
    counts = matrix.counted(result)
    assert matrix.confusion(result, counts).picture.startswith("data:image/webp")
    listed, every = matrix.classes(result, counts)
    assert (len(listed), every) == (200, 1000)
    assert listed[0].name == "class 1"
    assert listed[0].recall == 0.6
    assert matrix.confused(result, counts) == [("class 1", "class 0", 2)]
    few = result_of(3)
    assert matrix.classes(few, matrix.counted(few))[0][0].precision == 0.6


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"confusion": [[1]], "per_class": [1.0]},  # and no names
        {"confusion": [[1, 2], [1]], "per_class": [1.0, 1.0]},
        {"confusion": "x", "per_class": 3},
    ],
)
def test_a_result_without_its_classes_has_no_matrix(metrics) -> None:
    result = {"metrics": metrics, "classes": ["a", "b"]}
    counts = matrix.counted(result)
    assert counts is None
    assert matrix.confusion(result, counts) is None
    assert matrix.classes(result, counts) == ([], 0)
    assert matrix.confused(result, counts) == []


def test_a_long_line_is_drawn_short_and_keeps_its_ends_and_gaps() -> None:
    steps = range(100_000)
    long = charts.lines([Series("loss", steps, [float(step) for step in steps])])
    assert len(long) < 60_000
    assert "100,000" in long
    holes = charts.lines([Series("loss", steps, [None] * 100_000)])
    assert "<svg" in holes


def test_names_are_text_to_charts() -> None:
    names = ["a$\\frac$", "./_old", "\u4e2d\u6587", "x_y"]
    drawn = charts.lines([Series(name, [1, 2], [1, 2]) for name in names])
    assert all(name in drawn for name in names)


def test_a_changed_table_gets_no_pictures_of_others(copied, cli) -> None:
    path = copied / table.FILE
    head, *rows = path.read_text().splitlines(keepends=True)
    path.write_text(head + "".join(sorted(rows)) + rows[0])
    assert cli("report", "--run", copied).code == 0
    found = Page(copied / page.FILE)
    assert sum(each.startswith("data:image/png") for each in found.addresses) < 10


def test_charts_take_the_page_s_colours() -> None:
    drawn = charts.lines([Series("a & b", [1, 2], [1, None]), Series("c", [1], [2.0], True)], [1])
    assert "var(--series-1)" in drawn
    assert "currentColor" in drawn
    assert not re.search("#0a0a0[0-9]", drawn)
    assert "a &amp; b" in drawn
    assert "<metadata" not in drawn


FLIPPED = '''
import torch
from sklearn.datasets import load_digits


def digits(config):
    """Digits, one label in twenty another one, drawn with a seed of its own."""
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images * 15.9375).to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    draw = torch.Generator().manual_seed(5)
    order = torch.randperm(len(labels), generator=draw)
    flipped = torch.zeros(len(labels), dtype=torch.bool)
    flipped[order[: len(labels) // 20]] = True
    shift = torch.randint(1, 10, (len(labels),), generator=draw)
    labels = torch.where(flipped, (labels + shift) % 10, labels)
    held = torch.arange(len(labels)) % 5 == 0
    return (pixels[~held], labels[~held]), (pixels[held], labels[held])
'''


@pytest.mark.slow
def test_labels_that_were_flipped_on_purpose_are_found(tmp_path) -> None:
    """18 of 360: 18 at most can be among the 64 worst mistakes, and 16 among as many doubts."""
    (tmp_path / "flipped.py").write_text(FLIPPED)
    words = ["--data.source", "flipped:digits", "--batch_size", 128, "--lanes", 8]
    words += ["--model.name", "convnet", "--max_steps", 120, "--optim.lr", 0.1, "--run", "run"]
    done = harness.processes(1, "fit", *words, where=tmp_path)
    assert done.code == 0, done.err
    said = table.read(tmp_path / "run")
    from sklearn.datasets import load_digits

    truth = [str(label) for label in load_digits().target[::5]]
    flipped = {each.number for each in said if each.label != truth[each.number]}
    worst = {each.number for each in judged.mistakes(said, 64)}
    doubted = judged.doubtful(said, 16)
    assert len(flipped & worst) >= len(flipped) - 1
    assert sum(each.number in flipped for each in doubted) >= len(doubted) - 2
    assert len(doubted) > 10


def test_what_stands_in_metrics_cannot_be_read(copied) -> None:
    (copied / "metrics.jsonl").unlink()
    (copied / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot read .*metrics\.jsonl"):
        page.read(copied)


def test_templates_go_into_images_and_packages() -> None:
    """An image that was built elsewhere has no checkout to find them in."""
    built = (ROOT / ".dockerignore").read_text().splitlines()
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for path in (ROOT / "train").rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert f"!train/**/*{path.suffix}" in built, path
            room = ".".join(path.parent.relative_to(ROOT).parts)
            kinds = packed["package-data"][room]
            assert any(path.match(kind) for kind in kinds), path
