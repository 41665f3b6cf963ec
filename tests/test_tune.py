"""The tuner: its search, what it makes of figures, and real trials in real processes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import DIGITS, ROOT, Outcome, one_line, slow_pictures
from hypothesis import given
from hypothesis import strategies as st

from host.errors import DataError, HostError, LostPeers, OutOfMemory, UsageError, from_fields
from train import experiment
from train.config import Config
from train.tuning import capacity, loaders, sizes, trials, variants
from train.tuning.search import Search


@given(limit=st.integers(0, 5000), most=st.integers(1, 4096))
def test_the_search_ends_near_the_largest_that_fits(limit: int, most: int) -> None:
    search, tries = Search(most=most), 0
    while (number := search.next()) is not None:
        assert search.low < number <= most
        assert search.high is None or number < search.high
        (search.fits if number <= limit else search.fails)(number)
        tries += 1
        assert tries < 40
    best = min(limit, most)
    assert search.low <= best
    assert best - search.low <= max(1, search.low / 16)


ROWS = [{"size": 16, "samples_per_second": 100.0}, {"size": 64, "samples_per_second": 300.0}]


@pytest.mark.parametrize(
    ("knobs", "largest", "world", "lanes", "says"),
    [
        ({}, 16, 1, 8, ""),
        ({}, 64, 1, 8, "lanes: 2 would do as well, at 3.00 × the speed"),
        ({}, 10, 1, 16, "lanes: 16 instead"),
        ({}, 10, 4, 16, "lanes: 16 instead"),
        ({"reproducibility": "fast", "batch_size": 96, "lanes": 2}, 40, 3, 3, "lanes: 3 instead"),
    ],
)
def test_lanes_change_only_where_they_must(knobs, largest, world, lanes, says) -> None:
    said: list[str] = []
    found = {"largest": largest, "world": world, "tried": ROWS}
    assert sizes.lanes(Config(**knobs), found, said).lanes == lanes
    assert says in " ".join(said)
    assert ("other bits" in " ".join(said)) is bool(says)


def test_a_batch_that_no_number_of_lanes_cuts_small_enough() -> None:
    config = Config(batch_size=122, lanes=2)
    with pytest.raises(UsageError, match="no number of lanes cuts batch_size 122"):
        sizes.lanes(config, {"largest": 10, "world": 1, "tried": ROWS}, [])


def test_the_fewest_lanes_that_the_processes_can_share() -> None:
    config = Config(batch_size=256, lanes=8)
    assert [sizes.fewest(config, 64, world) for world in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 8]
    config = Config(batch_size=256, lanes=8, reproducibility="deterministic")
    assert [sizes.fewest(config, 64, world) for world in (1, 2, 3, 4)] == [4, 4, None, 4]


def test_the_fewest_workers_that_keep_up() -> None:
    rows = [
        {"workers": count, "prefetch": 2, "samples_per_second": speed}
        for count, speed in ((0, 50.0), (1, 85.0), (2, 97.0), (4, 98.0), (8, 80.0))
    ]
    assert loaders.enough(rows)["workers"] == 2


def variant(precision: str, last: bool, compiled: bool, speed: float | None) -> dict:
    row = {"precision": precision, "channels_last": last, "compile": compiled}
    return row | ({"error": "no compiler"} if speed is None else {"samples_per_second": speed})


def test_what_changes_the_bits_is_taken_only_where_none_are_promised(tmp_path) -> None:
    rows = [
        variant("no", False, False, 100),
        variant("bf16", True, False, 250),
        variant("bf16", True, True, None),
    ]
    for level, taken in (("lockstep", False), ("deterministic", False), ("fast", True)):
        said: list[str] = []
        config, words = variants.fastest(
            Config(reproducibility=level), trials.Trials(tmp_path, 0), rows, said
        )
        assert config.model.channels_last is taken
        assert words == (" PRECISION=bf16" if taken else "")
        assert "2.50 × as fast with PRECISION=bf16, model.channels_last: true: " in said[0]
        assert ("left to you" in said[0]) is not taken
    assert (
        "no other"
        in (
            variants.fastest(Config(), trials.Trials(tmp_path, 0), rows[:1], said),
            said,
        )[1][-1]
    )


def tuned(*words: object, env: dict[str, str] | None = None) -> Outcome:
    """`python -m train tune …`: real processes."""
    done = subprocess.run(
        [sys.executable, "-m", "train", "tune", *map(str, words)],
        cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def folder_of(done: Outcome) -> Path:
    found = re.search(r"make train CONFIG=(\S+)/experiment.yaml", done.out)
    assert found, done
    return ROOT / found.group(1)


@pytest.fixture
def name() -> Iterator[str]:
    """A name of its own for the runs of a test, which are removed."""
    own = f"tune-test-{os.getpid()}"
    yield own
    shutil.rmtree(ROOT / "runs" / own, ignore_errors=True)


def test_bad_words_are_refused_before_anything_starts(name) -> None:
    done = tuned(*DIGITS, "--what", "batch,colour")
    assert done.code == 2
    assert "colour is none of batch, workers, speed, lr" in one_line(done.err)
    done = tuned(*DIGITS, "--lanes", "3")
    assert done.code == 2


@pytest.mark.slow
def test_processes_agree_on_the_largest_micro_batch_and_what_is_written_trains_the_same(
    name,
) -> None:
    done = tuned(*DIGITS, "--name", name, "--what", "batch,lr", env={"CPUS": "2"})
    assert done.code == 0, done.err
    folder = folder_of(done)
    assert re.search(r"^this takes about .+ min \(batch .+, lr .+\)$", done.out, re.MULTILINE)
    found = json.loads((folder / "tune.json").read_text())
    # All of the data fits on this machine.
    assert found["batch"]["answers"] == [718, 718]
    assert found["batch"]["largest"] == 718
    assert 0.01 < found["lr"]["steepest"] < 1
    assert found["lr"]["steepest"] < found["lr"]["lowest"]
    # The learning rate decides the result, and lanes the bits: neither is touched.
    before = experiment.load(ROOT / "configs/digits.yaml")
    assert experiment.load(folder / "experiment.yaml") == before.model_copy(update={"name": name})
    for picture in ("batch.png", "lr.png"):
        assert (folder / picture).read_bytes()[:4] == b"\x89PNG"


NARROW = """
import os
from torch import nn

class Narrow(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.line = nn.Linear(64, classes)

    def forward(self, images):
        if os.environ.get("RANK") == "1" and len(images) > 100:
            raise MemoryError
        return self.line(images.flatten(1))

def build(classes, shape):
    return Narrow(classes)
"""


@pytest.mark.slow
def test_where_memory_lacks_on_one_process_all_take_less(name, tmp_path) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    words = ["--name", name, "--what", "batch", "--model.name", "narrow:build"]
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = tuned(*DIGITS, *words, env={"CPUS": "2", "PYTHONPATH": path})
    assert done.code == 0, done.err
    found = json.loads((folder_of(done) / "tune.json").read_text())["batch"]
    assert 64 <= found["largest"] <= 100
    assert len(set(found["answers"])) == 1


@pytest.mark.slow
def test_lack_of_memory_is_an_answer_and_no_error(name, tmp_path) -> None:
    """A real limit (ulimit -d): the allocator says no, in the middle of a step, and the trial lives on."""
    slow_pictures(tmp_path, count=64, side=96)
    words = (
        f"--name {name} --what batch --batch_size 32 --lanes 2 --data.source folder --data.size 96"
    )
    tune = f"{sys.executable} -m train tune {words} --data.root {tmp_path}"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -d 1400000; exec {tune}"],
        cwd=ROOT, env={**os.environ, "CPUS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((folder_of(Outcome(0, done.stdout, "")) / "tune.json").read_text())["batch"]
    assert 1 <= found["largest"] < found["limit"] <= 64
    assert "does not fit" in done.stdout
    assert "killed" not in done.stdout


@pytest.mark.slow
def test_an_error_that_is_none_of_memory_ends_the_tuner(name, tmp_path) -> None:
    done = tuned(
        "--name", name, "--what", "batch", "--data.source", "folder", "--data.root", tmp_path
    )
    assert done.code == 3, done
    assert "no " in one_line(done.err)


@pytest.mark.slow
@pytest.mark.alone
def test_workers_for_a_slow_decoder(name, tmp_path) -> None:
    """Each picture takes some 5 ms to decode: with workers, less of the time waits for data.

    Whether they are worth it on so few cores is the machine's affair, and what it measures decides.
    """
    slow_pictures(tmp_path, count=120, side=560)
    done = tuned(
        "--name", name, "--what", "workers", "--batch_size", "8", "--lanes", "2",
        "--data.source", "folder", "--data.root", tmp_path, "--data.size", "32", "--data.cache", "0",
        "--data.mean", "[0.5,0.5,0.5]", "--data.std", "[0.2,0.2,0.2]", env={"CPUS": "1"},
    )  # fmt: skip
    assert done.code == 0, done.err
    folder = folder_of(done)
    found = json.loads((folder / "tune.json").read_text())["workers"]
    tried, best = found["tried"], found["best"]
    shares = {row["workers"]: row["data_share"] for row in tried}
    assert {0, 1, 2} <= set(shares)
    assert min(shares[1], shares[2]) < found["before"]["data_share"] == shares[0]
    most = max(row["samples_per_second"] for row in tried)
    good = [row["workers"] for row in tried if row["samples_per_second"] >= loaders._WORTH * most]
    assert best["workers"] == min(good)
    assert experiment.load(folder / "experiment.yaml").data.workers == found["best"]["workers"]


def test_a_killed_trial_is_told_from_one_that_fails(tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    log.write_text("Signal 9 (SIGKILL) received by PID 7")
    assert trials._killed(1, None, log)
    log.write_text("ValueError: bad")
    assert not trials._killed(1, None, log)
    assert trials._killed(-9, None, log)
    killed = trials._error(1, None, log, killed=True)
    assert isinstance(killed, OutOfMemory)
    said = from_fields(DataError("the data set is empty", "check data.source").fields())
    other = trials._error(1, said, log, killed=False)
    assert (other.code, other.problem) == (3, "the data set is empty")
    assert isinstance(other, HostError) is False
    full = from_fields(OutOfMemory("process 0 has no room → none", "raise lanes").fields())
    assert isinstance(trials._error(1, full, log, killed=False), OutOfMemory)
    assert full.problem == "process 0 has no room → none"  # never split out of prose
    lost = LostPeers("process 1 lost the others", "see what they say")
    assert isinstance(trials._error(1, lost, log, killed=False), OutOfMemory)


def test_memory_is_the_training_s_own_of_what_there_is_for_it() -> None:
    from train.lanes import runtime as runtimes

    with runtimes.start(Config()) as runtime:
        capacity.reset_peak(runtime)
        before, _ = capacity.peak_memory(runtime)
        # Large beside what Python gives back meanwhile.
        block = torch.ones(256 << 20, dtype=torch.uint8)
        with_block, total = capacity.peak_memory(runtime)
        assert 0.95 * (256 << 20) < with_block - before < 2 * (256 << 20)
        assert with_block < total
        del block
