"""Checkpoints that are written while training goes on: what stands in them, and what goes wrong."""

import errno
import json
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import DIGITS

from host.errors import CheckpointError
from train import loop
from train.process.interrupt import StopFlag
from train.record import files
from train.record.background import Background
from train.record.saver import Saver

WORDS = [*DIGITS, "--max_steps", 12, "--checkpoint.every", 4, "--eval.every", 100]
WORDS += ["--optim.name", "adamw", "--optim.ema", 0.9]


@pytest.fixture
def steps(monkeypatch) -> threading.Semaphore:
    """One more for each step that has begun."""
    begun, update = threading.Semaphore(0), loop.update

    def counted(*args):
        begun.release()
        return update(*args)

    monkeypatch.setattr(loop, "update", counted)
    return begun


def tensors(run: Path, step: int) -> list[str]:
    """The digests of what a checkpoint holds, without the clock's figures."""
    lines = (run / f"checkpoints/step-{step:08}/SHA256SUMS").read_text().splitlines()
    return [line for line in lines if not line.endswith("state.json")]


@pytest.mark.slow
def test_training_goes_on_meanwhile_and_is_not_in_it(tmp_path, cli, steps, monkeypatch) -> None:
    waited, background = tmp_path / "waited", tmp_path / "background"
    assert cli("fit", *WORDS, "--run", waited, "--checkpoint.background", "false").code == 0
    while steps.acquire(blocking=False):
        pass
    save, went_on = Saver.save, []

    def late(self, state, *held) -> None:
        # The step that is saved has begun, and of those that follow three are to.
        if state["step"] == 4:
            went_on.append(all(steps.acquire(timeout=30) for _ in range(4 + 3)))
        save(self, state, *held)

    monkeypatch.setattr(Saver, "save", late)
    assert cli("fit", *WORDS, "--run", background).code == 0
    assert went_on == [True]
    for step in (4, 8, 12):
        assert tensors(background, step) == tensors(waited, step)
        assert len(tensors(waited, step)) == 3


@pytest.mark.slow
def test_the_next_save_waits_for_the_one_before_it(tmp_path, cli, steps, monkeypatch) -> None:
    save, entered, overtaken = Saver.save, [], []

    def slow(self, state, *held) -> None:
        entered.append(state["step"])
        if state["step"] == 4:  # 9 steps would have begun, were it not waited for
            overtaken.append(all(steps.acquire(timeout=2) for _ in range(9)))
        save(self, state, *held)

    monkeypatch.setattr(Saver, "save", slow)
    assert cli("fit", *WORDS, "--run", tmp_path / "run").code == 0
    assert overtaken == [False]
    assert entered == [4, 8, 12]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [4, 12])
def test_one_that_fails_ends_the_run_at_once(tmp_path, cli, failing, monkeypatch) -> None:
    """With the last whole one said, not at the next save, and not with the run called finished."""
    write = files.write_new

    def full(path, parts):
        if f"step-{failing:08}" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, parts)

    monkeypatch.setattr(files, "write_new", full)
    end = 60 if failing == 4 else 12
    words = [*WORDS, "--max_steps", end, "--log.every", 1]
    ended = cli("fit", *words, "--run", tmp_path / "run")
    assert ended.code == CheckpointError.code
    last = "there is none before it" if failing == 4 else "last whole checkpoint is step-00000008"
    assert "No space left on device" in ended.err
    assert last in ended.err
    assert json.loads((tmp_path / "run/result.json").read_text())["status"] == "failed"
    if failing == 4:
        last_step = (tmp_path / "run/trace.csv").read_text().split()[-1].split(",")[0]
        assert int(last_step) <= 8
    monkeypatch.undo()
    again = cli("fit", *words, "--run", tmp_path / "run", "--resume")
    assert again.code == 0, again.err
    assert cli("fit", *words, "--run", tmp_path / "whole").code == 0
    assert tensors(tmp_path / "run", end) == tensors(tmp_path / "whole", end)


def test_what_fails_in_the_background_is_raised_where_it_is_waited_for() -> None:
    background, error, done = Background(), CheckpointError("the disk is full", "make room"), []

    def fail() -> None:
        raise error

    background.begin(fail)
    with pytest.raises(CheckpointError) as raised:
        background.begin(lambda: done.append(1))
    assert raised.value is error
    background.begin(lambda: done.append(2))
    background.wait()
    background.finish()
    assert done == [2]
    background.begin(fail)
    background.wait()  # on the way out, where something else is raised
    with pytest.raises(CheckpointError):
        background.finish()
    background.finish()


def test_who_is_interrupted_while_waiting_waits_again() -> None:
    """A thread's second join returns at once: the run's lock would go while it still writes."""
    background, done = Background(), []

    class OfALoaderError(Exception):
        pass

    def handler(*_) -> None:
        raise OfALoaderError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        background.begin(lambda: (time.sleep(1.0), done.append(1)))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(OfALoaderError):
            background.finish()
        assert background.busy
        assert done == []
        background.wait()
        assert done == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_run_can_be_asked_to_stop_without_a_signal() -> None:
    stop = StopFlag()
    assert not stop
    stop.ask()
    assert stop
    assert stop.signal is None
