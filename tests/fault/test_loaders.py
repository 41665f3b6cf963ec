"""A loader process that is killed ends its trainer, at once and by name; the others with it."""

import time

import psutil
import pytest
from fault.harness import WORDS, start

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_loader_ends_the_run_by_name(tmp_path, world, number) -> None:
    words = [*WORDS, "--epochs", 50, "--data.workers", 2, "--run", tmp_path / "run"]
    attempt = start(tmp_path / "0", world, words)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("run/checkpoints/step-*")):
        assert time.monotonic() < deadline, attempt.output()
        time.sleep(0.02 + 0.03 * number)
    loaders = attempt.loaders()
    assert len(loaders) == 2 * world
    loaders[number % len(loaders)].kill()
    assert attempt.wait(120) == [6] * world, attempt.output()
    assert "error: a loader process of process " in attempt.output()
    assert "Traceback" not in attempt.output()
    _, left = psutil.wait_procs(loaders, timeout=5)
    assert not left
