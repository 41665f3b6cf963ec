"""`predict` from end to end: it says of files what an evaluation says of the same pictures."""

import csv
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import odd
import pytest
import torch
from conftest import ROOT, one_line, picture
from fault import harness
from PIL import Image

from train.config import Data
from train.data import load
from train.predictions import asked

WORDS = ["--model.name", "convnet", "--batch_size", 8, "--lanes", 2, "--epochs", 3]


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    """Of dark and light pictures that are scaled to 12 pixels, its weights averaged."""
    path = tmp_path_factory.mktemp("runs") / "run"
    words = ["--data.source", "folder", "--data.root", folder, "--data.size", 12, *WORDS]
    done = harness.processes(
        1, "fit", *words, "--optim.ema", 0.5, "--eval.batch_size", 4, "--run", path
    )
    assert done.code == 0, done.err
    return path


def table(run: Path) -> list[dict[str, str]]:
    with (run / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_run_s_table_agrees_with_its_result(run) -> None:
    result, said = json.loads((run / "result.json").read_text()), table(run)
    metrics, classes = result["metrics"], result["classes"]
    assert len(said) == metrics["samples"] == 9
    assert sum(row["class"] == row["label"] for row in said) / 9 == metrics["top1"]
    assert sum(float(row["loss"]) for row in said) / 9 == pytest.approx(metrics["loss"], rel=1e-7)
    confusion = [
        [sum((r["label"], r["class"]) == (a, b) for r in said) for b in classes] for a in classes
    ]
    assert confusion == metrics["confusion"]
    for row in said:
        assert float(row["loss"]) == pytest.approx(
            -math.log(float(row["label_probability"])),
            abs=2e-7,  # as a probability near 1 is rounded
        )


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_files_get_what_the_evaluation_gave_them(run, folder, world) -> None:
    done = harness.processes(world, "predict", "--run", run, folder / "validation")
    assert done.code == 0, done.err
    said = rows(done.out)
    measured = table(run)
    assert [row["file"] for row in said] == [str(folder / row["file"]) for row in measured]
    for row, known in zip(said, measured, strict=True):
        assert row["class"] == known["class"]
        assert row["probability"] == float(known["probability"])  # to the last digit
        by_class = {each["class"]: each["probability"] for each in row["top"]}
        assert by_class[known["label"]] == float(known["label_probability"])
        assert sum(by_class.values()) == pytest.approx(1)


def test_digits_of_a_file_get_what_the_evaluation_gave_them(finished, cli, tmp_path) -> None:
    held = load(Data(source="digits", holdout=0.201)).validation
    for number, image in enumerate(held.resident):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{number:03}.png")
    said = rows(cli("predict", "--run", finished, tmp_path).out)
    known = [(row["class"], float(row["probability"])) for row in table(finished)]
    assert [(row["class"], row["probability"]) for row in said] == known


def test_what_cannot_be_used_is_named_and_the_rest_goes_on(finished, cli, tmp_path) -> None:
    picture(tmp_path / "good.png", 90)
    picture(tmp_path / "large.png", 90, (9, 8))
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:60])
    (tmp_path / "notes.txt").write_text("no picture")
    done = cli("predict", "--run", finished, tmp_path / "none.png", tmp_path)
    assert done.code == 3
    by_name = {Path(row["file"]).name: row for row in rows(done.out)}
    assert {*by_name} == {"none.png", "good.png", "large.png", "cut.png"}
    assert "error" not in by_name["good.png"]
    assert by_name["none.png"]["error"] == "No such file or directory"
    assert "it has 9×8 pixels, and the model takes 8×8" in by_name["large.png"]["error"]
    assert "3 of 4 files cannot be used" in done.err
    assert "left out, as hidden or no pictures: 1" in done.err


def test_names_are_written_as_they_are(finished, cli, tmp_path) -> None:
    picture(tmp_path / "chêne.png", 90)
    latin = os.fsdecode(b"odd\xe9.png")  # Latin-1, which is no UTF-8
    (tmp_path / latin).write_bytes((tmp_path / "chêne.png").read_bytes())
    done = cli("predict", "--run", finished, tmp_path)
    assert done.code == 0, done.err
    assert "/chêne.png" in done.out
    assert {Path(row["file"]).name for row in rows(done.out)} == {"chêne.png", latin}


def test_names_that_no_file_can_have_are_named_and_the_rest_goes_on(
    finished, cli, tmp_path
) -> None:
    picture(tmp_path / "good.png", 90)
    done = cli("predict", "--run", finished, "x" * 5000, tmp_path / "good.png")
    assert done.code == 3
    assert [("error" in row) for row in rows(done.out)] == [True, False]


@pytest.mark.slow
def test_odd_files_are_read_as_a_training_reads_them_or_named_with_the_reason(
    run, tmp_path
) -> None:
    made = odd.make(tmp_path / "odd") / "train" / "odd"
    done = harness.processes(2, "predict", "--run", run, made)
    assert done.code == 3
    said = {Path(row["file"]).name: row for row in rows(done.out)}
    for kind in odd.KINDS:
        if kind.name in odd.LEFT_OUT:
            assert kind.name not in said
        elif kind.name in odd.BAD:
            assert kind.bad in said[kind.name]["error"]
        else:
            assert "class" in said[kind.name], (kind.name, said[kind.name])
    good = [row for row in said.values() if "class" in row]
    assert len(good) == 6 + len(odd.KINDS) - len(odd.BAD) - len(odd.LEFT_OUT)
    assert f"{len(odd.BAD)} of {len(said)} files cannot be used" in done.err


def test_a_table_with_as_many_classes_as_are_asked_for(finished, cli, tmp_path) -> None:
    picture(tmp_path / 'a "b", c.png', 90)
    done = cli("predict", "--run", finished, "--csv", "--top", 2, tmp_path, tmp_path / "none.png")
    first, second = csv.DictReader(io.StringIO(done.out))
    assert [*first] == [
        "file", "class", "probability", "class_2", "probability_2", "error", "doubt"
    ]  # fmt: skip
    assert first["file"] == str(tmp_path / 'a "b", c.png')
    assert float(first["probability"]) >= float(first["probability_2"]) > 0
    assert second["error"]
    assert not second["class"]


@pytest.mark.parametrize("top", [1, 2, 3, 5, 7])
def test_of_equal_classes_an_evaluation_s_comes_first_however_many_are_asked_for(top) -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [3, 500, 900]] = 4.0
    names = [str(number) for number in range(1000)]
    (said,) = asked._said(logits, names, top)
    assert said["class"] == str(int(logits.topk(5).indices[0, 0]))
    assert said["probability"] == said["top"][0]["probability"]
    shown = [each["probability"] for each in said["top"]]
    assert shown == sorted(shown, reverse=True)
    assert len({each["class"] for each in said["top"]}) == len(shown) == top


@pytest.mark.slow
def test_patterns_and_lists(finished, tmp_path) -> None:
    for name in ("a.png", "b.png", "c.jpg", "line\nbreak.png"):
        picture(tmp_path / name, 90)
    command = [sys.executable, "-m", "train", "predict", "--run", str(finished)]

    def said(*words: str, given: str = "") -> list[str]:
        done = subprocess.run(
            [*command, *words], input=given, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        return [Path(row["file"]).name for row in rows(done.stdout)]

    assert said(f"{tmp_path}/?.png") == ["a.png", "b.png"]
    names = [str(tmp_path / name) for name in ("c.jpg", "a.png")]
    assert said("-", given="\n".join(names)) == ["c.jpg", "a.png"]
    picture(tmp_path / "IMG1.png", 90)
    gone = subprocess.run(
        [*command, "-"], input=f"{tmp_path}/IMG[1].png", cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert rows(gone.stdout)[0]["error"] == "No such file or directory"  # a name, no pattern
    (tmp_path / "pairs" / "empty").mkdir(parents=True)
    picture(tmp_path / "pairs" / "full" / "d.png", 90)
    assert said(str(tmp_path / "pairs" / "*")) == ["d.png"]
    odd_one = str(tmp_path / "line\nbreak.png")
    assert said("-", given=f"{odd_one}\0{names[0]}\0") == ["line\nbreak.png", "c.jpg"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["{tmp}/*.png"], "no file matches"),
        (["{tmp}"], "there are no pictures in"),
        (["x.png", "--top", "0"], "--top 0"),
        (["x.png", "--top", "2", "y.png"], "unknown argument y.png → name all of them in one"),
        ([""], "a name is empty"),
        (["{tmp}/two/*"], "there are no pictures in all that was named"),
        ([], "no FILE is named → name it: make predict ARGS=FILE"),
    ],
)
def test_what_has_no_sense_is_refused(finished, cli, tmp_path, words, problem) -> None:
    if "two" in "".join(words):
        for name in ("a", "b"):
            (tmp_path / "two" / name).mkdir(parents=True)
    done = cli("predict", "--run", finished, *(word.format(tmp=tmp_path) for word in words))
    assert done.code == 2
    assert problem in one_line(done.err)
    assert not done.out


@pytest.mark.slow
def test_a_picture_of_what_the_model_got(run, folder, cli, tmp_path) -> None:
    done = cli(
        "predict", "--run", run, folder / "validation", "--show", tmp_path / "new" / "shown.png"
    )
    assert done.code == 0, done.err
    with Image.open(tmp_path / "new" / "shown.png") as shown:
        assert shown.width > 500
    done = cli("predict", "--run", run, folder / "validation", "--show", tmp_path / "shown.what")
    assert done.code == 2
    assert "name a file that ends in .png" in one_line(done.err)
    assert not done.out
    done = cli("predict", "--checkpoint", run, folder / "validation")
    assert f"{run} is a run, and not one of its checkpoints → say --run {run}" in one_line(done.err)


@pytest.mark.slow
def test_nearly_black_pictures_of_sixteen_bits_are_doubted(run, cli, tmp_path) -> None:
    dark = Image.fromarray((torch.rand(20, 20) * 4095).to(torch.int32).numpy().astype("uint16"))
    dark.save(tmp_path / "twelve-bits.png")
    done = cli("predict", "--run", run, tmp_path / "twelve-bits.png")
    assert rows(done.out)[0]["doubt"] == "it has more than 8 bits and is nearly black"
    assert "files with more than 8 bits that are nearly black: 1; " in done.err


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(finished, tmp_path) -> None:
    for number in range(40):
        picture(tmp_path / f"{number}.png", 90)
    command = f"{sys.executable} -m train predict --run {finished} --top 10 {tmp_path} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert len(rows(done.stdout)) == 1
    assert not done.stderr
