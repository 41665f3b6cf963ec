"""`compare`: what differs between two runs is named, and nothing else; so is the first step."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DIGITS, ROOT, one_line
from PIL import Image

KNOBS = [
    "--max_steps", 20, "--eval.every", 10, "--checkpoint.every", 5, "--checkpoint.keep", 4,
    "--log.every", 1,
]  # fmt: skip


def compared(cli, one: Path, other: Path) -> dict:
    done = cli("compare", "--json", one, other)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_same_twice(finished, cli, tmp_path) -> None:
    assert cli("fit", *DIGITS, *KNOBS, "--run", tmp_path / "again").code == 0
    said = cli("compare", finished, tmp_path / "again").out.splitlines()[1:]
    assert said == [
        "  nothing that decides the result differs",
        "  all 20 steps have the same loss and gradient, to the bit",
        "  the final weights are the same",
    ]


def test_one_knob(finished, cli, tmp_path) -> None:
    words = ["--optim.lr", 0.05, "--checkpoint.keep", 2, "--run", tmp_path / "other"]
    assert cli("fit", *DIGITS, *KNOBS, *words).code == 0
    found = compared(cli, finished, tmp_path / "other")
    assert found["deciding"] == {"optim.lr": ["0.1", "0.05"]}
    assert found["idle"] == {"checkpoint.keep": ["4", "2"]}
    assert (found["factors"], found["computing"]) == ({}, [])
    assert found["step"] == 2
    assert found["weights"] is False
    text = cli("compare", finished, tmp_path / "other").out
    assert "    optim.lr: 0.1, then 0.05\n" in text
    assert "  step 2 is the first that differs: loss " in text


@pytest.mark.slow
def test_ten_first_steps(cli, tmp_path) -> None:
    """A rate that falls after so many updates shows in the loss of the next step."""
    words = [*DIGITS, *KNOBS, "--optim.warmup", 0, "--optim.schedule"]
    assert cli("fit", *words, "constant", "--run", tmp_path / "constant").code == 0
    for updates in range(1, 11):
        falls = [
            "step",
            "--optim.milestones",
            f"[{updates / 20}]",
            "--run",
            tmp_path / str(updates),
        ]
        assert cli("fit", *words, *falls).code == 0
        found = compared(cli, tmp_path / "constant", tmp_path / str(updates))
        assert found["step"] == updates + 2
        assert {*found["deciding"]} == {"optim.schedule", "optim.milestones"}


def test_one_pixel(folder, cli, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    path = next((other / "train" / "dark").iterdir())
    with Image.open(path) as picture:
        picture.load()
    picture.putpixel((3, 3), picture.getpixel((3, 3)) ^ 1)
    picture.save(path)
    words = ["--data.source", "folder", "--model.name", "mlp", "--batch_size", 8, "--max_steps", 6]
    for root, run in ((folder, "one"), (other, "two")):
        done = cli("fit", *words, "--data.root", root, "--run", tmp_path / run)
        assert done.code == 0, done.err
    found = compared(cli, tmp_path / "one", tmp_path / "two")
    assert {*found["factors"]} == {"data"}
    assert {*found["deciding"]} <= {"data.root"}
    assert found["step"] is not None


def test_one_package(finished, cli, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(finished, other, symlinks=True)
    record = json.loads((other / "run.json").read_text())
    record["versions"]["numpy"] = "0.1"
    (other / "run.json").write_text(json.dumps(record))
    found = compared(cli, finished, other)
    assert [*found["factors"]] == ["package numpy"]
    assert found["factors"]["package numpy"][1] == "0.1"
    assert found["step"] is None
    assert found["weights"] is True


@pytest.mark.slow
def test_one_thread_count(tmp_path, cli) -> None:
    every = sorted(os.sched_getaffinity(0))
    words = ["fit", "--model.name", "mlp", "--batch_size", "16", "--lanes", "1", "--max_steps", "3"]
    words += ["--reproducibility", "deterministic"]
    for count in (1, 2):  # a machine of one CPU has one thread both times
        command = [
            "taskset",
            "-c",
            ",".join(map(str, every[:count])),
            sys.executable,
            "-m",
            "train",
        ]
        done = subprocess.run(
            [*command, *words, "--run", tmp_path / str(count)],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    found = compared(cli, tmp_path / "1", tmp_path / "2")
    assert found["factors"] == ({"threads": ["1", "2"]} if len(every) > 1 else {})


def test_a_longer_run_agrees_as_far_as_the_shorter_goes(finished, cli, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(finished, other, symlinks=True)
    whole = (other / "trace.csv").read_text().splitlines(keepends=True)
    (other / "trace.csv").write_text("".join(whole[:16]))
    said = cli("compare", finished, other).out
    assert "  all 15 steps have the same loss and gradient, to the bit\n" in said
    assert "  one has 5 steps more than the other\n" in said
    (other / "trace.csv").unlink()
    assert "there is no trace of the steps of both" in cli("compare", finished, other).out
    (other / "trace.csv").write_text(whole[0] + "1,--,--\n")
    assert "cannot read" in one_line(cli("compare", finished, other).err)


def test_what_only_one_level_depends_on_is_no_difference(finished, cli, tmp_path) -> None:
    words = [*DIGITS, *KNOBS, "--numerics", "native", "--reproducibility", "deterministic"]
    assert cli("fit", *words, "--run", tmp_path / "other").code == 0
    found = compared(cli, finished, tmp_path / "other")
    assert {*found["deciding"]} == {"numerics", "reproducibility"}
    assert not {*found["factors"]} & {"device", "driver", "processes", "data", "image"}


def test_several_are_compared_with_the_first(finished, cli) -> None:
    done = cli("compare", finished, finished, finished)
    assert done.out.count(f"{finished} and {finished}") == 2


def test_what_is_no_run_is_refused(finished, cli, tmp_path) -> None:
    assert "there is no run in" in one_line(cli("compare", finished, tmp_path).err)
    assert "alone → name two runs" in one_line(cli("compare", finished).err)
    assert "required: RUN" in one_line(cli("compare").err)
