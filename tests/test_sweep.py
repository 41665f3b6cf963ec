"""Sweeps: what is varied, where trials run, how they came out; killed, they go on to the same."""

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nvidia_smi
import psutil
import pytest
from conftest import DIGITS, ROOT, one_line

from host.errors import DivergedError, HostError, UsageError
from train.config import Config
from train.process.interrupt import StopFlag
from train.record import metrics
from train.sweeps import journal, results, space, study, told
from train.sweeps import slots as places
from train.sweeps.points import Points, check
from train.sweeps.spec import Spec
from train.sweeps.study import Study
from train.sweeps.sweeping import Sweep


def points(*words: str, first: int = 0, seeds: int = 1, drawn: int | None = None) -> Points:
    axes = space.axes(words)
    check(axes, drawn, seeds)
    return Points(tuple(axes), first, seeds, drawn)


def test_a_grid_has_each_combination_once_and_the_last_knob_varies_fastest() -> None:
    planned = points("optim.lr=0.1,0.3", "augment.sizes=[4,6],null", "lanes=1..3")
    every = [planned.values(number) for number in range(planned.total)]
    assert planned.total == len({tuple(each.items()) for each in every}) == 12
    assert every[1] == {"optim.lr": "0.1", "augment.sizes": "[4,6]", "lanes": "2"}
    made = space.nested({"optim": {"lr": 1, "clip": 2}}, every[4])
    assert made["optim"] == {"lr": "0.1", "clip": 2}
    assert made["augment"] == {"sizes": None}
    assert space.nested({}, every[0])["augment"] == {"sizes": [4, 6]}


def test_each_point_has_each_seed() -> None:
    planned = points("optim.lr=0.1,0.3", first=7, seeds=3)
    seeds = [planned.values(number)["seed"] for number in range(planned.total)]
    assert seeds == ["7", "8", "9"] * 2
    assert points(seeds=4).values(2) == {"seed": "2"}


def test_what_is_drawn_follows_from_the_number_and_fills_the_space() -> None:
    words = (
        "optim.lr=log:0.01..1",
        "optim.momentum=0..0.99",
        "batch_size=16..64",
        "model.stem=small,standard",
    )
    few, many = points(*words, drawn=8), points(*words, drawn=64)
    assert [few.values(n) for n in range(8)] == [many.values(n) for n in range(8)]
    assert few.values(3) != points(*words, first=1, drawn=8).values(3)
    every = [many.values(n) for n in range(64)]
    rates = [float(each["optim.lr"]) for each in every]
    assert all(0.01 <= rate <= 1 for rate in rates)
    # A quarter of the range has a quarter of the points, within one of them.
    for edge in (0.01, 0.01 * 10**0.5, 0.1, 10**-0.5):
        assert 15 <= sum(edge <= rate < edge * 10**0.5 for rate in rates) <= 17
    assert {int(each["batch_size"]) for each in every} > {16, 64}
    assert sum(each["model.stem"] == "small" for each in every) == 32


@pytest.mark.parametrize(
    ("words", "trials", "seeds", "says"),
    [
        (["optim.lrr=1,2"], None, 1, "no knob optim.lrr; did you mean optim.lr?"),
        (["lr=1,2"], None, 1, "did you mean optim.lr?"),
        (["optim.lr"], None, 1, "no values"),
        (["optim.lr=0.1"], None, 1, "one value varies nothing → say --optim.lr 0.1"),
        (["optim.lr=0.1,0.1"], None, 1, "a value twice"),
        (["optim.lr=0.1,,1"], None, 1, "an empty value"),
        (["optim.lr=1,2", "optim.lr=3,4"], None, 1, "names optim.lr twice"),
        (["data.workers=1,2"], None, 1, "data.workers decides nothing"),
        (["optim.lr=0.1..1"], None, 1, "numbers without end → say how many"),
        (["optim.lr=1..0.1"], 4, 1, "1 is not below 0.1"),
        (["optim.weight_decay=log:0..1"], 4, 1, "the logarithm needs more than 0"),
        (["batch_size=1.5..3"], 4, 1, "batch_size is a whole number"),
        (["optim.name=1..3"], 4, 1, "optim.name is no number"),
        (["augment.sizes=1..3"], 4, 1, "augment.sizes is no number"),
        (["batch_size=log:1..3"], None, 1, "log does nothing"),
        (["seed=0..99999"], None, 1, "that is 100,000 trials"),
        (["seed=0,1"], None, 2, "--seeds and --over seed"),
        ([], None, 1, "nothing is varied"),
        ([], 3, 1, "--trials without --over"),
        (["optim.lr=1,2", "seed=1..3"], 7, 1, "--trials 7, and there are 6 combinations"),
        (["seed=0..9007199254740993"], 4, 1, "numbers so large are not told apart"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(words, trials, seeds, says) -> None:
    with pytest.raises(UsageError) as raised:
        points(*words, seeds=seeds, drawn=trials)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--over", "optim.lr=0.1,-1"], "with optim.lr=-1: optim.lr = '-1': input should be"),
        (["--over", "optim.name=sgd,adamw", "optim.momentum=0,0.9"], "momentum does nothing with"),
        (["--over", "lanes=1,3"], "with lanes=3: lanes: 3 with batch_size: 128"),
        (["--over", "optim.lr=-1..1", "--trials", "4"], "with optim.lr=-"),
        (["--over", "seed=0,1", "--sampler", "tpe"], "--sampler tpe with no --trials"),
        (["--over", "seed=0,1", "--trials", "2", "--sampler", "grid"], "--sampler grid with --tri"),
        (
            ["--over", "optim.lr=1,2", "--trials", "2", "--sampler", "tpe", "--seeds", "2"],
            "--seeds with --sampler tpe",
        ),
        (["--seeds", "0"], "0 is no number from 1"),
        (["--over", "augment.sizes=[4,null"], "augment.sizes=[4 is no list"),
        (["--over", "optim.lr=1,2", "--prune", "--seeds", "2"], "--seeds with --prune"),
        (["--over", "optim.lr=1,2", "--prune"], "--prune does nothing: it waits for 4 finished"),
        (["--seeds", "2", "--epochs", "-1"], "epochs = '-1'"),
        (["--over", "optim.lr=1,2", "--optim.lr", "3"], "--optim.lr 3 does nothing beside --over"),
        (["--over", "seed=1,2", "--seed", "3"], "--seed 3 does nothing beside --over seed=…"),
        (["--resume"], "there is no sweep in"),
    ],
)
def test_wrong_words_are_answered_on_a_line_before_anything_is_written(
    cli, tmp_path, words, says
) -> None:
    done = cli("sweep", *DIGITS, "--run", tmp_path / "new", *words)
    assert done.code == 2
    assert says in one_line(done.err)
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_is_not_taken(cli, tmp_path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = cli("sweep", *DIGITS, "--seeds", 2, "--run", tmp_path)
    assert done.code == 2
    assert "holds thesis.tex and no sweep" in one_line(done.err)


GPUS = [{"index": n, "uuid": f"GPU-{n}", "pci.bus_id": f"0{n}:00.0"} for n in range(4)]


@pytest.mark.parametrize(
    ("asked", "workers", "expected"),
    [
        ({}, None, ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        ({"GPUS": "2"}, None, ["GPU-0", "GPU-1"]),
        ({"GPUS": "4"}, 2, ["GPU-0,GPU-1", "GPU-2,GPU-3"]),
        ({"GPUS": "2", "CUDA_VISIBLE_DEVICES": "3,1"}, None, ["GPU-3", "GPU-1"]),
        ({"GPUS": "4"}, 3, "--workers 3 cannot share 4 GPUs evenly → say --workers 2"),
        ({"CPUS": "2"}, None, [2]),
        ({"CPUS": "4"}, 2, [2, 2]),
        ({"GPUS": "0"}, 3, [1, 1, 1]),
        ({"CPUS": "2"}, 4, "--workers 4 cannot share 2 processes evenly → say --workers 2"),
    ],
)
def test_places_share_what_there_is(tmp_path, asked, workers, expected) -> None:
    nvidia_smi.write(tmp_path, GPUS)
    environ = {"PATH": str(tmp_path), **asked}
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            places.slots(Config(), environ, workers)
        return
    made = places.slots(Config(), environ, workers)
    if isinstance(expected[0], int):
        assert [int(slot.environ["CPUS"]) for slot in made] == expected
        assert all("GPUS" not in slot.environ for slot in made)
        cpus = [slot.cpus for slot in made if slot.cpus is not None]
        assert sum(map(len, cpus)) == len(set().union(*cpus))
    else:
        assert [slot.environ["CUDA_VISIBLE_DEVICES"] for slot in made] == expected
        assert {slot.environ["GPUS"] for slot in made} == {str(4 // len(made) if workers else 1)}


def test_portable_numerics_stay_on_the_cpu(tmp_path) -> None:
    nvidia_smi.write(tmp_path, GPUS)
    (slot,) = places.slots(Config(numerics="portable"), {"PATH": str(tmp_path)}, None)
    assert slot.environ["CPUS"] == "1"


@pytest.mark.parametrize("learns", [False, True])
def test_a_journal_goes_on_where_it_was_cut_off(tmp_path, learns) -> None:
    planned = points("optim.lr=log:0.001..1", "model.stem=small,standard", drawn=16)
    planned = replace(planned, learns=learns)

    def outcome(values: dict[str, str]) -> float:
        return 1 - abs(float(values["optim.lr"]) - 0.1) - 0.1 * (values["model.stem"] == "small")

    def drive(folder: Path, *, cut: bool) -> list[study.Trial]:
        folder.mkdir()
        held = Study(folder, planned)
        while (trial := held.next()) is not None:
            if cut:  # power is lost: half a line is written, and the trial had begun
                with (folder / journal.NAME).open("ab") as file:
                    file.write(b'{"op_code": 6, "wor')
                held = Study(folder, planned)
                (again,) = held.unfinished()
                assert again == trial
            held.ended(trial, outcome(trial.values))
        return held.trials()

    whole = drive(tmp_path / "whole", cut=False)
    assert drive(tmp_path / "cut", cut=True) == whole
    assert [each.number for each in whole] == list(range(16))
    if learns:  # it has gone to where it is good
        late = [each.top1 or 0 for each in whole[10:]]
        assert statistics.fmean(late) > statistics.fmean([each.top1 or 0 for each in whole[:10]])
    else:
        assert [each.values for each in whole] == [planned.values(n) for n in range(16)]


def test_a_trial_that_was_cut_off_among_its_values_gets_the_others(tmp_path) -> None:
    planned = points("optim.lr=0.1,0.3", "optim.momentum=0,0.9")
    trial = Study(tmp_path, planned).next()
    path = tmp_path / journal.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # the last is its second value
    (again,) = Study(tmp_path, planned).unfinished()
    assert again == trial


def test_one_that_falls_behind_ends_early(tmp_path) -> None:
    planned = points("optim.lr=log:0.01..1", drawn=9)
    held = Study(tmp_path, planned)
    for number in range(4):
        trial = held.next()
        assert not held.report(trial, 0.1, 0.0)
        assert not held.report(trial, 0.5, 0.2 * number)
        held.ended(trial, 0.2 * number)
    good, early, bad = held.next(), held.next(), held.next()
    assert not held.report(good, 0.5, 0.5)
    assert not held.report(early, 0.2, 0.0)  # too soon to tell
    assert not held.report(bad, 1.0, 0.0)  # it is done anyway
    assert held.report(bad, 0.5, 0.1)
    held.ended(bad, None)
    held.ended(early, None, DivergedError("the loss is nan", "lower it"))
    assert [each.status for each in held.trials()[4:]] == ["unfinished", "failed", "pruned"]
    error = held.trials()[5].error
    assert isinstance(error, DivergedError)
    assert str(error) == "the loss is nan → lower it"


def test_combinations_are_drawn_once_each() -> None:
    words = ("optim.lr=1,2,3", "model.stem=small,standard", "seed=1..4")
    drawn = [points(*words, drawn=24).values(n) for n in range(24)]
    assert len({tuple(each.values()) for each in drawn}) == 24
    assert drawn != [points(*words).values(n) for n in range(24)]
    assert drawn[:5] == [points(*words, drawn=5).values(n) for n in range(5)]


def test_large_seeds_are_what_they_are(tmp_path) -> None:
    first = 1732400000000000003
    held = Study(tmp_path, points(first=first, seeds=3))
    assert [held.next().values for _ in range(3)] == [{"seed": str(first + n)} for n in range(3)]
    learning = replace(points("optim.lr=0.1..1", first=2**40, drawn=2), learns=True)
    (tmp_path / "tpe").mkdir()
    assert Study(tmp_path / "tpe", learning).next()


SPEC = Spec([], None, "grid", 1, False, {}, {}, "defaults", None, {})


def told_of(folder: Path, spec: Spec, tops: list[float | None]) -> list[str]:
    """What is said of a sweep whose trials came out so; None: it diverged."""
    held = Study(folder, spec.points())
    for top1 in tops:
        trial = held.next()
        error = None if top1 is not None else DivergedError("the loss is nan", "lower it")
        held.ended(trial, top1, error)
    return told.write(folder, spec, spec.points(), held.trials())


def test_seeds_that_are_varied_by_hand_are_points(tmp_path) -> None:
    lines = told_of(tmp_path, replace(SPEC, over=["seed=3..5"]), [0.5, 0.75, 0.25])
    assert [line.split() for line in lines[:3]] == [
        ["trial", "seed", "top-1"], ["1", "4", "75.00", "%"], ["0", "3", "50.00", "%"],
    ]  # fmt: skip
    assert "\nseed: 4\n" in (tmp_path / "best.yaml").read_text()
    assert [row["top1"] for row in rows(tmp_path)] == ["0.5", "0.75", "0.25"]


def test_a_point_that_lacks_a_seed_is_not_the_best(tmp_path) -> None:
    spec = replace(SPEC, over=["optim.lr=0.5,0.25"], seeds=3)
    lines = told_of(tmp_path, spec, [None, None, 0.92, 0.9, 0.91, 0.92])
    assert lines[1].split(maxsplit=2)[:2] == ["3,4,5", "0.25"]
    assert "91.00 ± 1.00 %, mean and standard deviation of 3 seeds" in lines[1]
    assert "92.00 %, one seed of 3" in lines[2]
    assert "\n  lr: 0.25\n" in (tmp_path / "best.yaml").read_text()


def test_a_tie_is_told(tmp_path) -> None:
    spec = replace(SPEC, over=["optim.lr=0.5,0.25,0.125"])
    for name in "ab":
        (tmp_path / name).mkdir()
    lines = told_of(tmp_path / "a", spec, [0.9, 0.875, 0.9])
    (tie,) = (line for line in lines if "the first of them" in line)
    assert tie.startswith("warning: 2 points have the best top-1, 90.00 %, and the first")
    assert not any("the first of" in line for line in told_of(tmp_path / "b", spec, [1, 0.5, 0.5]))
    assert "\n  lr: 0.5\n" in (tmp_path / "a/best.yaml").read_text()


def test_what_trainings_warn_of_is_told_once(tmp_path) -> None:
    for number, text in enumerate(("it takes 9 steps", "it takes 1e-3 steps", "no GPU")):
        run = results.run_of(tmp_path, number)
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(
            metrics.line({"kind": "warning", "step": 0, "text": text}) * 2
        )
    lines = told_of(tmp_path, replace(SPEC, over=["seed=3..5"]), [0.5, 0.75, 0.25])
    warned = [line for line in lines if line.startswith("warning: ")]
    assert warned == ["warning: trial 0 and 1 more: it takes 9 steps", "warning: trial 2: no GPU"]
    assert "no GPU" in (tmp_path / "sweep.html").read_text()


def test_drawn_trials_are_no_seeds(tmp_path) -> None:
    spec = replace(SPEC, over=["model.stem=small,standard"], trials=2, sampler="tpe")
    lines = told_of(tmp_path, spec, [0.5, 0.75])
    assert not any("standard deviation" in line for line in lines)


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        (lambda run: (run / "sweep.json").write_text('{"over": 1'), 4, "sweep.json is damaged"),
        (
            lambda run: (run / "sweep.json").write_text(
                (run / "sweep.json").read_text().replace('"seeds": 2', '"seeds": "two"')
            ),
            4,
            "sweep.json is damaged: seeds: Input should be a valid integer",
        ),
        (lambda run: (run / "journal.log").write_text("{}\n{}\n"), 4, "journal.log is damaged"),
        (
            lambda run: ((run / "journal.log").unlink(), (run / "journal.log").mkdir()),
            4,
            "journal.log: Is a directory",
        ),
        (lambda run: (run / "trials").touch(), 6, "cannot start a training in"),
        (
            lambda run: shutil.copytree(run.parent / "finished", run / "trials" / "0001"),
            4,
            "trials/0001 is a run of another experiment than trial 1",
        ),
    ],
    ids=["no json", "wrong type", "no journal", "a folder", "a file", "another run"],
)
def test_what_is_in_the_way_is_named(cli, finished, tmp_path, spoil, code, says) -> None:
    """A sweep that was killed before its trials began, and then its folder changed."""
    run = tmp_path / "run"
    run.mkdir()
    place = {"device": "cpu", "PRECISION": "no"}
    spec = replace(SPEC, seeds=2, knobs={"max_steps": "2"}, place=place)
    spec.write(run)
    held = Study(run, spec.points())
    assert held.next()
    held.ended(held.next(), 0.5) if says.endswith("run.json") else held.next()
    shutil.copytree(finished, tmp_path / "finished", symlinks=True)
    if "trial 1" in says:  # the first has failed, so that the second is looked at
        held.ended(held.trials()[0], None, DivergedError("the loss is nan", "lower it"))
    spoil(run)
    done = cli("sweep", "--run", run, "--resume")
    assert done.code == code
    assert says in one_line(done.err)


def test_it_goes_on_where_it_was_as_far_as_that_decides_bits(cli, tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    spec = replace(SPEC, seeds=2, knobs={"reproducibility": "deterministic"})
    (slot,) = places.slots(spec.experiment({}), {"PATH": ""}, None)
    replace(spec, place=slot.decides).write(run)
    monkeypatch.setenv("PRECISION", "bf16")
    done = cli("sweep", "--run", run, "--resume")
    assert done.code == 2
    assert "was started with PRECISION no, and this is bf16" in one_line(done.err)
    monkeypatch.delenv("PRECISION")
    monkeypatch.setenv("CPUS", "2")
    done = cli("sweep", "--run", run, "--resume")
    assert "was started with processes a trial 1, and this is 2" in one_line(done.err)


def test_one_that_is_still_written_is_waited_for(tmp_path, monkeypatch) -> None:
    spec = replace(SPEC, seeds=2)
    held = Study(tmp_path, spec.points())
    held.next()
    run = results.run_of(tmp_path, 0)
    run.mkdir(parents=True)
    code = "import sys; from pathlib import Path; from train.record import lock\n"
    code += "with lock.hold(Path(sys.argv[1])):\n print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, run], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        sweep = Sweep(tmp_path, spec, held, [])
        assert sweep._next().number == 1
        monkeypatch.setattr(sweep, "_begin_by", 0)
        with pytest.raises(HostError, match="another process still writes"):
            sweep._next()
        other.communicate(b"\n")
    assert sweep._next().number == 0


SHORT = [
    "--max_steps",
    "24",
    "--eval.every",
    "8",
    "--checkpoint.every",
    "4",
    "--log.report",
    "false",
]
SEEDS = int(os.environ.get("SWEEP_SEEDS", "1"))  # make test-fault has two: twelve trials
OVER = ["--over", "optim.lr=0.02,0.05,0.1", "batch_size=64,128", "--seeds", str(SEEDS)]


def rows(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "trials.csv").read_text().splitlines()))


def start(*words: object, run: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "train", "sweep", *DIGITS, *map(str, words), "--run", str(run)],
        cwd=ROOT, env={**os.environ, "CPUS": "2"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
def test_killed_three_times_it_has_each_trial_once_and_the_same(tmp_path, cli) -> None:
    run = tmp_path / "sweep"
    words = [*SHORT, *OVER, "--workers", 2]
    for count in (1, 2 * SEEDS, 4 * SEEDS):
        process = start(*words, *["--resume"] * (count > 1), run=run)
        below = []
        while len(list(run.glob("trials/*/result.json"))) < count:
            assert process.poll() is None, process.communicate()[0].decode()
            with suppress(psutil.NoSuchProcess):
                below = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        time.sleep(0.2 * count)  # somewhere in the next ones
        process.kill()
        if count == 2 * SEEDS:  # and all that it had started
            for each in below:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.communicate()
    process = start("--resume", "--workers", 2, run=run)  # it knows the rest
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    found = rows(run)
    assert [row["trial"] for row in found] == [str(n) for n in range(6 * SEEDS)]
    assert {row["status"] for row in found} == {"finished"}
    assert len({row["weights_sha256"] for row in found}) == len(found)
    for row in found:
        # The same training by itself, and by hand.
        knobs = [
            "--optim.lr",
            row["optim.lr"],
            "--batch_size",
            row["batch_size"],
            "--seed",
            row.get("seed", "0"),
        ]
        alone = tmp_path / f"alone-{row['trial']}"
        assert cli("fit", *DIGITS, *SHORT, *knobs, "--run", alone).code == 0
        result = json.loads((alone / "result.json").read_text())
        assert result["weights_sha256"] == row["weights_sha256"]
        assert result["metrics"]["top1"] == float(row["top1"])
        assert row["run"] == str(run / "trials" / f"{int(row['trial']):04d}")
    best = (run / "best.yaml").read_text()
    tops: dict[tuple[str, str], list[float]] = {}
    for row in found:
        tops.setdefault((row["optim.lr"], row["batch_size"]), []).append(float(row["top1"]))
    lr, batch = max(tops, key=lambda key: statistics.fmean(tops[key]))
    assert f"lr: {lr}\n" in best
    assert f"\nbatch_size: {batch}\n" in best
    again = start("--resume", run=run)
    assert b"begins" not in again.communicate()[0]


@pytest.mark.slow
def test_seeds_have_their_mean_and_spread_and_each_one_s_weights(tmp_path) -> None:
    run = tmp_path / "seeds"
    process = start(*SHORT, "--seeds", 3, "--workers", 2, run=run)
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    tops = [float(row["top1"]) for row in rows(run)]
    for row in rows(run):
        assert f"seed   {row['seed']}  top-1  {100 * float(row['top1']):.2f} %" in said
        assert row["weights_sha256"] in said
    mean, deviation = 100 * statistics.fmean(tops), 100 * statistics.stdev(tops)
    assert f"top-1 {mean:.2f} ± {deviation:.2f} %, mean and standard deviation of 3 seeds" in said
    assert not (run / "best.yaml").exists()
    page = (run / "sweep.html").read_text()
    assert all(row["weights_sha256"][:16] in page for row in rows(run))


@pytest.mark.slow
def test_one_that_fails_by_itself_leaves_the_others_alone(tmp_path) -> None:
    run = tmp_path / "failing"
    process = start(*SHORT, "--over", "optim.lr=0.05,1e30", run=run)
    said = process.communicate()[0].decode()
    assert process.returncode == 0, said
    good, bad = rows(run)
    assert (good["status"], bad["status"]) == ("finished", "failed")
    assert "loss" in bad["why"]
    assert "trial 1  optim.lr=1e30  failed: " in said


@pytest.mark.parametrize("values", ["1,2", "1,2,3,4,5,6"])
def test_where_all_fail_it_ends_as_they_did(tmp_path, values) -> None:
    spec = replace(SPEC, over=[f"optim.lr={values}"])
    held, lost = Study(tmp_path, spec.points()), DivergedError("the loss is nan", "lower it")
    for _ in range(min(4, held.points.total)):
        held.ended(held.next(), None, lost)
    with Sweep(tmp_path, spec, held, []) as sweep:
        if held.points.total == 2:
            with pytest.raises(DivergedError, match=r"no trial of .* was finished: the loss is na"):
                sweep.run(StopFlag())
        else:
            with pytest.raises(DivergedError, match="all 5 trials so far failed"):
                sweep._failed(held.next(), lost)


@pytest.mark.slow
def test_a_signal_stops_it_and_it_goes_on(tmp_path) -> None:
    run = tmp_path / "stopped"
    process = start(*SHORT, "--over", "optim.lr=0.05,0.1", "--workers", 2, run=run)
    while len(list(run.glob("trials/*/checkpoints/step-*"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0].decode()
    assert process.returncode == 75, said
    assert f"make sweep RUN={run} ARGS=--resume" in said
    other = start("--resume", "--over", "optim.lr=0.05,0.2", run=run)
    assert b"started with another --over" in other.communicate()[0]
    assert other.returncode == 2
    other = start(*SHORT, "--resume", "--optim.momentum", "0.5", run=run)
    said = other.communicate()[0].decode()
    assert "started with optim.momentum 0.9, and not 0.5" in said
    last = start("--resume", run=run)
    last.communicate()
    assert last.returncode == 0
    assert {row["status"] for row in rows(run)} == {"finished"}
