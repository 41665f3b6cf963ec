"""A run that is asked to stop, whose launcher dies, that has a rival, or whose disk is full."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, one_line
from fault.harness import FSDP, WORDS, assert_same_run, finish, start, whole_checkpoint

pytestmark = pytest.mark.slow

# `make test-fault` asks for 20.
FLIPS = int(os.environ.get("FAULT_FLIPS", "8"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupted."""
    return finish(tmp_path_factory.mktemp("reference"), WORDS)


# On one process of several: the others learn of it.
PHASES = {
    "before the first step": {"at": "load"},
    "between two lanes of a step": {"at": "lane", "count": 11},
    "in an evaluation": {"at": "eval", "count": 10},
    "in a save": {"at": "file", "count": 9},
}


@pytest.mark.parametrize(
    ("number", "world", "phase"),
    [
        *((signal.SIGTERM, world, phase) for world in (1, 2) for phase in PHASES),
        (signal.SIGINT, 2, "in an evaluation"),
        (signal.SIGUSR1, 2, "between two lanes of a step"),
    ],
)
def test_a_signal_saves_and_ends_with_75(tmp_path, reference, phase, world, number) -> None:
    words = [*WORDS, "--run", tmp_path / "run", "--resume"]
    rank = 0 if phase == "in a save" else world - 1  # the first one saves
    attempt = start(tmp_path / "0", world, words, {rank: {**PHASES[phase], "signal": number}})
    attempt.struck()
    assert attempt.wait(10) == [75] * world, attempt.output()
    assert one_line(attempt.output().split("\n")[-2]).startswith("stopped: a signal came")
    if phase == "in an evaluation":
        # The evaluation was not finished: the resumed run does it first.
        assert whole_checkpoint(tmp_path / "run") == 12
    again = start(tmp_path / "1", 3 - world, words)
    assert again.wait(60) == [0] * (3 - world), again.output()
    assert_same_run(tmp_path / "run", reference)


def test_a_run_has_one_writer(tmp_path, reference) -> None:
    words = [*WORDS, "--run", tmp_path / "run", "--resume"]
    living = start(tmp_path / "0", 2, words, {0: {"at": "lane", "count": 41, "signal": 19}})
    living.struck()
    rival = start(tmp_path / "1", 1, words)
    assert rival.wait(30) == [2]
    assert f"is being written by process {living.ranks[0].pid} on " in one_line(rival.output())
    os.kill(living.ranks[0].pid, signal.SIGCONT)
    assert living.wait(60) == [0, 0], living.output()
    assert_same_run(tmp_path / "run", reference)
    assert not (tmp_path / "run/.lock").exists()


@pytest.mark.alone  # five seconds are promised of a machine that is not crowded
@pytest.mark.parametrize("cpus", ["1", "2"])
@pytest.mark.parametrize("victim", ["make train", "accelerate launch"])
def test_a_launcher_that_is_killed_leaves_no_ghosts(tmp_path, reference, victim, cpus) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-m", "train.launch", *map(str, WORDS), "--data.workers", "1"]
    if (victim, cpus) == ("accelerate launch", "1"):  # which make does without
        words[:3] = [str(Path(sys.executable).parent / "accelerate"), "launch", "--config_file"]
        words[3:3] = ["configs/accelerate/cpu.yaml", "-m", "train"]
    words += ["--run", str(run), "--resume", "--checkpoint.every", "2"]
    environ = {**os.environ, "CPUS": cpus}
    launch = subprocess.Popen(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 60
    while not list(run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    tree = psutil.Process(launch.pid).children(recursive=True)
    # A trainer and a loader for each; several have Accelerate's launcher before them.
    assert len(tree) == 2 * int(cpus) + (cpus == "2")
    (tree[0] if (victim, cpus) == ("accelerate launch", "2") else launch).kill()
    at_once = subprocess.Popen(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    _, left = psutil.wait_procs(tree, timeout=5)
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
    output, _ = at_once.communicate(timeout=120)
    launch.communicate(timeout=10)
    assert at_once.returncode == 0, output
    assert "going on after step" in output
    assert_same_run(run, reference)


@pytest.mark.parametrize(
    "front",
    [
        ["make", "train", "CPUS=1"],
        ["make", "train", "CPUS=2"],
        ["accelerate", "launch", "--config_file", "configs/accelerate/cpu.yaml"],
    ],
    ids=lambda front: front[-1].replace("configs/accelerate/", ""),
)
def test_sigterm_to_what_people_call(tmp_path, reference, front) -> None:
    """make passes it on; Accelerate's launcher does not, but its death is noticed."""
    run = tmp_path / "run"
    words = [*map(str, WORDS), "--run", str(run), "--resume"]
    if front[0] == "make":
        front = [*front, "CONFIG=configs/digits.yaml", f"ARGS={shlex.join(words[3:])}"]
    else:
        front = [str(Path(sys.executable).parent / front[0]), *front[1:], "-m", "train", *words]
    child = subprocess.Popen(
        front, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 60
    while not list(run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    tree = psutil.Process(child.pid).children(recursive=True)
    child.terminate()
    child.communicate(timeout=20)
    _, left = psutil.wait_procs(tree, timeout=10)
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
    assert json.loads((run / "run.json").read_text())["exit_code"] == 75
    again = start(tmp_path / "1", 2, words)
    assert again.wait(60) == [0, 0], again.output()
    assert_same_run(run, reference)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 6 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


# In a save (of which some has been written), and between saves, where the next line that is
# written finds the disk full.
@pytest.mark.parametrize("moment", [{"at": "file", "count": 48}, {"at": "lane", "count": 100}])
@pytest.mark.parametrize(
    ("left", "world", "told"),
    [(0, 1, {}), (300_000, 1, {}), (0, 2, {}), (0, 2, FSDP), (120_000, 2, FSDP)],
    ids=["one", "one, a little room", "two", "two, sharded", "two, sharded, a little room"],
)
def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path, small_disk, reference, moment, left, world, told
) -> None:
    run = small_disk / "run"
    words = [*WORDS, "--run", run, "--resume"]
    if "lane" in moment.values():
        moment = {**moment, "count": moment["count"] // world}
    strikes = {0: {**moment, "signal": signal.SIGSTOP}}
    attempt = start(tmp_path / "0", world, words, strikes, dict.fromkeys(range(world), told))
    attempt.struck()
    free = os.statvfs(small_disk)
    # Another process may have written since: then nothing is left at all.
    with suppress(OSError), (small_disk / "filler").open("wb") as filler:
        filler.write(bytes(free.f_bavail * free.f_frsize - left))
    before = whole_checkpoint(run)
    os.kill(attempt.ranks[0].pid, signal.SIGCONT)
    codes = attempt.wait(120)
    # The first process writes; another is told, or finds it gone.
    assert codes[0] == 4, attempt.output()
    assert set(codes[1:]) <= {4, 6}, attempt.output()
    said = one_line((attempt.folder / "0.err").read_text().split("\n")[-2])
    assert said.startswith("error: cannot write ")
    assert "No space left on device" in said
    # Where something fits, a save or two may have gone well.
    kept = whole_checkpoint(run)
    assert None not in (before, kept)
    assert kept >= before
    # What stood on the disk before may become whole, and pruning then makes room for another.
    assert left or kept <= before + 10
    (small_disk / "filler").unlink()
    again = start(tmp_path / "1", 2, words)
    assert again.wait(60) == [0, 0], again.output()
    assert_same_run(run, reference)


@pytest.mark.parametrize("number", range(FLIPS))
def test_a_flipped_bit_is_found_and_its_process_named(tmp_path, number) -> None:
    """Of four by majority; of two by the one that saw its own weights change."""
    world = (4, 2)[number % 2]
    step, rank, bit = 2 + 2 * number % 17, number // 2 % world, (7 * number) % 32
    words = [*WORDS, "--tripwire", 5, "--eval.every", 40, "--run", tmp_path / "run"]
    flip = {"flip": [step, 13 * number, bit]}
    attempt = start(tmp_path / "0", world, words, {rank: flip})
    assert attempt.wait(60) == [6] * world, attempt.output()
    found = -(-step // 5) * 5
    said = one_line(attempt.output().split("\n")[-2])
    assert said.startswith(f"error: process {rank} strayed from the others by step {found}, first")
    assert (whole_checkpoint(tmp_path / "run") or 0) < step
