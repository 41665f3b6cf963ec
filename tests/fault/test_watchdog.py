"""What stands still is named within the limit, and the run ends; what is only slow is let be."""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import one_line
from fault.harness import WORDS, Attempt, assert_same_run, finish, start

pytestmark = pytest.mark.slow

LIMIT = 8  # seconds; said after 0.8
HOST = platform.node()
LONG = [*WORDS, "--watchdog", LIMIT]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("reference"), WORDS)


def under_way(attempt: Attempt, run: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline, attempt.output()
        time.sleep(0.02)


def said(attempt: Attempt, beginning: str) -> str:
    deadline = time.monotonic() + 10  # it may be another process's to say
    while f"\n{beginning}" not in attempt.output() and time.monotonic() < deadline:
        time.sleep(0.1)
    rows = [row for row in attempt.output().split("\n") if row.startswith(beginning)]
    assert len(rows) == 1, attempt.output()
    return one_line(rows[0])


def test_a_loader_that_stands_still(tmp_path, reference) -> None:
    run = tmp_path / "run"
    words = [*LONG, "--data.workers", 1, "--data.prefetch", 1, "--run", run]
    attempt = start(tmp_path / "0", 1, [*words, "--epochs", 20])
    under_way(attempt, run)
    (loader,) = attempt.loaders()
    loader.suspend()
    assert attempt.wait(LIMIT + 30) == [6], attempt.output()
    stuck = f"process 0 on {HOST} waits for data (loader process {loader.pid} is stopped)"
    assert said(attempt, "warning: no step for ").split(": ", 2)[2].startswith(f"{stuck}; the run")
    assert stuck in said(attempt, "error: no step for ")
    stacks = (run / "stacks-0.txt").read_text()
    assert "train/data/loader.py" in stacks
    assert stacks.count("Thread 0x") >= 2
    loader.kill()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_stands_still(tmp_path, reference, rank) -> None:
    run = tmp_path / "run"
    words = [*LONG, "--run", run]
    attempt = start(tmp_path / "0", 2, [*words, "--resume"])
    under_way(attempt, run)
    os.kill(attempt.ranks[rank].pid, signal.SIGSTOP)
    other = attempt.ranks[1 - rank]
    other.join(LIMIT + 30)
    assert other.exitcode == 6, attempt.output()
    silent = " does not answer: it is stopped, or its machine is gone"
    assert f"error: no step for {LIMIT} s: process {rank}" in attempt.output()
    assert silent in said(attempt, "error: no step for ")
    attempt.end()
    again = start(tmp_path / "1", 1, [*words, "--resume"])
    assert again.wait(60) == [0], again.output()
    assert_same_run(run, reference)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that can be made to hang."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for words in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place]):
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system needs root and a loop device")
    yield place
    subprocess.run(["fsfreeze", "-u", place], capture_output=True, check=False)
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_stands_still(tmp_path, disk) -> None:
    run = disk / "run"
    attempt = start(tmp_path / "0", 2, [*LONG, "--epochs", 20, "--run", run])
    under_way(attempt, run)
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    try:
        attempt.ranks[1].join(LIMIT + 40)
        assert attempt.ranks[1].exitcode == 6, attempt.output()
        assert f"process 0 on {HOST} waits for the disk" in said(attempt, "error: no step for ")
        assert f"process 0 on {HOST} waits for the disk" in said(attempt, "warning: no step for ")
    finally:
        subprocess.run(["fsfreeze", "-u", disk], check=True)
    attempt.end()


def test_what_is_slow_is_let_be(tmp_path, reference) -> None:
    """Steps and evaluations that take many times their time, and a pause that is longer than the
    time after which it would be said.
    """
    run = tmp_path / "run"
    words = [*WORDS, "--watchdog", 40, "--eval.batch_size", 8, "--run", run, "--resume"]
    attempt = start(tmp_path / "0", 1, words)
    under_way(attempt, run)
    process, deadline, paused = attempt.ranks[0], time.monotonic() + 120, False
    while process.is_alive():  # a fifth of a CPU
        assert time.monotonic() < deadline
        with suppress(ProcessLookupError):  # it may have come to its end since
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.4 if paused else 7)
            paused = True
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)
    assert process.exitcode == 0, attempt.output()
    assert "no step for" not in attempt.output()


def test_it_can_be_turned_off(tmp_path) -> None:
    run = tmp_path / "run"
    attempt = start(tmp_path / "0", 1, [*WORDS, "--watchdog", 0, "--data.workers", 1, "--run", run])
    under_way(attempt, run)
    (loader,) = attempt.loaders()
    loader.suspend()
    time.sleep(5)
    assert attempt.alive()
    assert "no step" not in attempt.output()
    attempt.end()
