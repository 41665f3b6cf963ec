"""SHARES=auto: who is slow is given fewer lanes at a checkpoint, and the bits stay."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault.harness import WORDS, Attempt, assert_same_run, finish, start

STEPS = 300
LONG: list[Any] = [
    *WORDS, "--epochs", 100, "--max_steps", STEPS, "--checkpoint.every", 50, "--eval.every", 150,
    "--optim.clip", 0.5, "--optim.ema", 0.9,
]  # fmt: skip
AUTO = {"SHARES": "auto"}


def moved(run: Path) -> list[dict[str, Any]]:
    """When lanes were shared anew, and how."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [row for row in map(json.loads, lines) if row["kind"] == "shares"]


def slowed(attempt: Attempt, run: Path) -> None:
    """Have process 1 stand still for more than half of the time, until lanes are shared anew."""
    slow, deadline = psutil.Process(attempt.ranks[1].pid), time.monotonic() + 200
    while attempt.ranks[1].is_alive() and not moved(run) and time.monotonic() < deadline:
        slow.suspend()
        time.sleep(0.05)
        slow.resume()
        time.sleep(0.03)


@pytest.mark.slow
@pytest.mark.timeout(600)  # beside other tests
def test_who_is_slow_is_given_fewer_lanes_and_the_bits_stay(tmp_path) -> None:
    one, run = finish(tmp_path / "one", LONG), tmp_path / "run"
    told = dict.fromkeys(range(2), AUTO)
    attempt = start(tmp_path / "log", 2, [*LONG, "--run", run, "--resume"], variables=told)
    slowed(attempt, run)
    assert attempt.wait(240) == [0, 0], attempt.output()
    assert_same_run(run, one)
    first = moved(run)[0]
    fast, slow = first["shares"]
    assert fast > slow > 0 == first["step"] % 50 == fast + slow - 8
    assert (
        f"lanes {fast}+{slow} instead of 4+4 from step {first['step'] + 1} on" in attempt.output()
    )
    # Every lane of every step ran once, and on whom it was to.
    ran = [Counter[int](), Counter[int]()]
    for rank in range(2):
        for line in (tmp_path / f"log/{rank}.ledger").read_text().splitlines():
            ran[rank][int(line.split()[0])] += 1
    steps = sorted(ran[0])
    assert len(steps) == STEPS
    before, after = steps[first["step"] - 1], steps[first["step"]]
    assert (ran[0][before], ran[1][before]) == (4, 4)
    assert (ran[0][after], ran[1][after]) == (fast, slow)
    assert all(ran[0][step] + ran[1][step] == 8 for step in steps)


@pytest.mark.slow
def test_it_is_refused_where_it_could_do_nothing(tmp_path) -> None:
    told = {0: AUTO, 1: {}}
    attempt = start(tmp_path / "log", 2, [*WORDS, "--run", tmp_path / "run"], variables=told)
    assert attempt.wait(60) == [2, 2], attempt.output()
    assert "here the processes run 4+4 lanes (SHARES=auto), and on" in attempt.output()
    for level in ("fast", "deterministic"):
        words = [
            *WORDS,
            "--reproducibility",
            level,
            "--numerics",
            "native",
            "--run",
            tmp_path / "run",
        ]
        told = dict.fromkeys(range(2), AUTO)
        attempt = start(tmp_path / level, 2, words, variables=told)
        assert attempt.wait(60) == [2, 2], attempt.output()
        assert f"SHARES=auto: at {level} the processes keep the lanes that they" in attempt.output()
