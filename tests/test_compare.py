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

from train.config import Config
from train.record import comparison
from train.runs import seeds
from train.runs.seeds import Group

KNOBS = [
    "--max_steps", 20, "--eval.every", 10, "--checkpoint.every", 5, "--checkpoint.keep", 4,
    "--log.every", 1, "--log.report", "true",
]  # fmt: skip


def compared(cli, one: Path, other: Path) -> dict:
    done = cli("compare", "--json", one, other)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.slow
def test_the_same_twice(finished, cli, tmp_path) -> None:
    assert cli("fit", *DIGITS, *KNOBS, "--run", tmp_path / "again").code == 0
    _, results, *said = cli("compare", finished, tmp_path / "again").out.splitlines()
    [(top1,)] = [(words.split(" %")[0],) for words in results.split("top1 ")[1:]]
    assert results.startswith(f"  results: top1 {top1} %, then {top1} %; loss ")
    assert said == [
        "  nothing that decides the result differs",
        "  all 20 steps have the same loss and gradient, to the bit",
        "  the final weights are the same",
    ]


@pytest.mark.slow
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
    assert text.splitlines()[1].startswith("  results: top1 ")
    ended = subprocess.run(
        f"{sys.executable} -m train compare {finished} {tmp_path / 'other'} | true",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stderr == ""
    assert "  step 2 is the first that differs: loss " in text


@pytest.mark.slow
def test_another_seed_or_other_numerics_are_no_other_machine(finished, cli, tmp_path) -> None:
    for name, words in (("seed", ["--seed", 3]), ("native", ["--numerics", "native"])):
        run = tmp_path / name
        assert cli("fit", *DIGITS, "--max_steps", 2, *words, "--run", run).code == 0
        assert compared(cli, finished, run)["computing"] == []
    # The same experiment whose first pass is another is another machine's.
    shutil.copytree(finished, tmp_path / "other", symlinks=True)
    record = json.loads((tmp_path / "other/run.json").read_text())
    (tmp_path / "other/run.json").write_text(json.dumps(record | {"first_pass": "0" * 64}))
    assert compared(cli, finished, tmp_path / "other")["computing"] == [
        "other bits in the model's first pass"
    ]


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


@pytest.mark.slow
def test_what_only_one_level_depends_on_is_no_difference(finished, cli, tmp_path) -> None:
    words = [*DIGITS, *KNOBS, "--numerics", "native", "--reproducibility", "deterministic"]
    assert cli("fit", *words, "--run", tmp_path / "other").code == 0
    found = compared(cli, finished, tmp_path / "other")
    assert {*found["deciding"]} == {"numerics", "reproducibility"}
    assert not {*found["factors"]} & {"device", "driver", "processes", "data", "image"}


def test_several_are_compared_with_the_first(finished, cli) -> None:
    done = cli("compare", finished, finished, finished)
    assert done.out.count(f"{finished} and {finished}") == 2
    several = cli("compare", finished.parent / "finish*", finished)
    assert several.out.count(f"{finished} and {finished}") == 1


def test_what_is_no_run_is_refused(finished, cli, tmp_path) -> None:
    assert "there is no run in" in one_line(cli("compare", finished, tmp_path).err)
    assert "alone → name two runs" in one_line(cli("compare", finished).err)
    assert "no RUN is named → name it: make compare ARGS=RUN" in one_line(cli("compare").err)


def group(*top1: float, first: int = 0) -> Group:
    runs = {first + seed: Path(f"runs/{seed}") for seed in range(len(top1))}
    return Group(runs, list(top1), ["0"] * len(top1))


def test_a_difference_over_seeds_is_that_of_the_textbook() -> None:
    """Student's sleep data (1908), whose paired and Welch's tests R's manual prints."""
    one = group(0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    values = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    paired = seeds.better(one, group(*values))
    assert paired.paired
    assert paired.difference == pytest.approx(1.58)
    assert paired.p == pytest.approx(0.002833, abs=1e-6)
    assert (paired.low, paired.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    welch = seeds.better(one, group(*values, first=100))
    assert not welch.paired
    assert welch.p == pytest.approx(0.07939, abs=1e-5)
    assert (welch.low, welch.high) == pytest.approx((-0.2054832, 3.3654832), abs=1e-6)


def test_too_little_is_no_test() -> None:
    assert seeds.better(group(0.5), group(0.6)) is None
    assert seeds.better(group(0.5, 0.5), group(0.6, 0.6)) is None  # no spread at all
    assert seeds.better(group(0.5, 0.5), group(0.6, 0.6, first=5)) is None
    assert group(0.5).deviation is None
    # Each better by one picture of 361, but for the rounding.
    one = [n / 361 for n in (350, 349, 351)]
    assert seeds.better(group(*one), group(*[n / 361 for n in (351, 350, 352)])) is None


def test_runs_that_differ_in_more_than_the_seed_are_not_taken_together(finished, tmp_path) -> None:
    other = shutil.copytree(finished, tmp_path / "other", symlinks=True)
    record = json.loads((other / "run.json").read_text())
    record["config"]["seed"] = 1
    (other / "run.json").write_text(json.dumps(record))
    assert [len(each.runs) for each in seeds.groups([finished, other])] == [2]
    record["hardware"]["mixed_precision"] = "bf16"
    (other / "run.json").write_text(json.dumps(record))
    assert [len(each.runs) for each in seeds.groups([finished, other])] == [1, 1]


@pytest.mark.slow
def test_runs_that_differ_in_their_seed_only_are_taken_together(cli, tmp_path) -> None:
    paths = []
    for rate in (0.1, 0.02):
        for seed in (0, 1):
            paths.append(tmp_path / f"{rate}-{seed}")
            words = ["--max_steps", 16, "--optim.warmup", 0, "--optim.lr", rate, "--seed", seed]
            assert cli("fit", *DIGITS, *words, "--run", paths[-1]).code == 0
    page = tmp_path / "all.html"
    done = cli("compare", *paths, paths[0], "--html", page)  # one of them twice counts once
    assert done.code == 0, done.err
    *_, first, second, test = done.out.splitlines()
    assert first.startswith("2 runs that differ in their seed (0, 1): top-1 ")
    assert second.startswith("2 runs that differ in their seed (0, 1): top-1 ")
    assert "against the first: " in test
    assert "(the same seeds, paired)" in test
    said = json.loads(cli("compare", "--json", *paths).out.splitlines()[-1])
    results = [json.loads((path / "result.json").read_text()) for path in paths]
    assert [g["top1"] for g in said["seeds"]] == [
        [r["metrics"]["top1"] for r in some] for some in (results[:2], results[2:])
    ]
    assert said["seeds"][0]["mean"] == pytest.approx(
        sum(r["metrics"]["top1"] for r in results[:2]) / 2
    )
    text = page.read_text()
    assert all(f"0.02-{seed}" in text for seed in (0, 1))
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--html", "x.txt"], "ends in .html"), (["--html", "x.html"], "draw 8 runs at most")],
)
def test_what_cannot_be_drawn_is_refused(finished, cli, words, says) -> None:
    done = cli("compare", *[finished] * 9, *words)
    assert done.code == 2
    assert says in one_line(done.err)


def test_other_starting_weights_are_a_difference() -> None:
    """Else the machine would be blamed for them."""
    one, other = ({"first_weights_sha256": letter * 64} for letter in "ab")
    assert comparison.unlike(one, other) == [("starting weights", "a" * 12, "b" * 12)]
    assert comparison.unlike(one, one) == []


def test_processes_agree_on_when_they_meet() -> None:
    """These knobs change no bit; a process that saves at other steps would wait for the others."""
    often = Config.model_validate({"checkpoint": {"every": 5}, "log": {"every": 3}})
    said = comparison.other_knobs(Config(), often)
    assert said == (
        "checkpoint.every is 5, and None on the first; log.every is 3, and 10 on the first"
    )
    assert comparison.other_knobs(Config(), Config.model_validate({"watchdog": 60})) == ""
