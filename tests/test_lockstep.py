"""One hash on any number of processes: the promise on the label; and what other levels promise."""

import json
from pathlib import Path
from typing import Any

import pytest
from fault.harness import assert_same_run, finish, start

pytestmark = pytest.mark.slow

# 14 steps of 96 samples and a short one of 92; lanes of 12.
WORDS: list[Any] = [
    "fit", "--config", "configs/digits.yaml", "--batch_size", 96, "--lanes", 8, "--epochs", 1,
    "--eval.every", 7, "--checkpoint.every", 5, "--log.every", 1, "--tripwire", 4,
]  # fmt: skip

CASES: dict[str, list[Any]] = {
    "batch norm, sgd, augmentation": ["--augment.pad", 2, "--augment.flip", "true"],
    "no augmentation": ["--augment.pad", 0],
    "adamw": ["--optim.name", "adamw", "--optim.lr", 0.002],
    "clipping": ["--optim.clip", 0.3],
    "adamw, clipping, cutout": [
        "--optim.name", "adamw", "--optim.lr", 0.002, "--optim.clip", 0.3, "--augment.cutout", 3,
    ],
    "dropout": ["--model.name", "dropnet"],
    "dropout, adamw": ["--model.name", "dropnet", "--optim.name", "adamw", "--optim.lr", 0.002],
    "loader workers": ["--data.workers", 2],
    "no batch norm, plain sgd": ["--model.name", "mlp", "--optim.momentum", 0],
    "channels last, deeper, clipping": [
        "--model.name", "resnet18", "--model.stem", "small", "--model.channels_last", "true",
        "--max_steps", 2, "--batch_size", 32, "--optim.clip", 0.3,
    ],
    "a last batch for some of the lanes": ["--epochs", 0.34],
}  # fmt: skip


@pytest.mark.parametrize("knobs", CASES.values(), ids=CASES)
def test_one_hash_on_one_two_and_four_processes(tmp_path, knobs) -> None:
    one, *others = (finish(tmp_path / str(n), [*WORDS, *knobs], n) for n in (1, 2, 4))
    for world, other in zip((2, 4), others, strict=True):
        assert_same_run(other, one)
        assert json.loads((other / "run.json").read_text())["world_size"] == world


def test_eight_processes_and_loader_workers_change_nothing_either(tmp_path) -> None:
    one = finish(tmp_path / "1", WORDS)
    assert_same_run(finish(tmp_path / "8", WORDS, 8), one)
    assert_same_run(finish(tmp_path / "workers", [*WORDS, "--data.workers", 2], 2), one)


# 14 steps of 96 samples, and one of 92; gradients in several buckets, drawn numbers, averages.
HARD: list[Any] = [
    *WORDS, "--model.name", "dropnet", "--optim.name", "adamw", "--optim.lr", 0.002,
    "--optim.clip", 0.3, "--optim.ema", 0.9, "--epochs", 0.34,
]  # fmt: skip


@pytest.fixture(scope="module")
def hard(tmp_path_factory) -> Path:
    """On one process."""
    return finish(tmp_path_factory.mktemp("hard"), HARD)


@pytest.mark.parametrize("shares", ["3,3,2", "5,3", "6,1,1", "1,6,1", "2,2,1,1,2", "1,1,1,1,1,1,2"])
def test_shares_that_are_not_even_change_nothing(tmp_path, hard, shares) -> None:
    world = shares.count(",") + 1
    told = {} if shares == "3,3,2" else {"SHARES": shares}  # what three have by themselves
    words = [*HARD, "--run", tmp_path / "run"]
    attempt = start(tmp_path / "log", world, words, variables=dict.fromkeys(range(world), told))
    assert attempt.wait(240) == [0] * world, attempt.output()
    assert_same_run(tmp_path / "run", hard)
    for rank in range(world):
        ledger = (tmp_path / f"log/{rank}.ledger").read_text().splitlines()
        lanes = {int(line.split()[1]) for line in ledger}
        assert len(lanes) == int(shares.split(",")[rank])


def test_shares_that_are_not_the_same_everywhere_are_refused(tmp_path) -> None:
    told = {0: {"SHARES": "5,3"}, 1: {"SHARES": "3,5"}}
    attempt = start(tmp_path / "log", 2, [*WORDS, "--run", tmp_path / "run"], variables=told)
    assert attempt.wait(60) == [2, 2], attempt.output()
    assert "here the processes run 5+3 lanes, and on" in attempt.output()
    assert "start all of them with the same SHARES" in attempt.output()


def interrupted(home: Path, words: list[Any], world: int) -> Path:
    """Killed in the middle of step 9, and continued from step 7 or 5."""
    words = [*words, "--run", home / "run", "--resume"]
    lanes = 8 // world
    attempt = start(home / "0", world, words, {0: {"at": "lane", "count": 9 * lanes, "signal": 9}})
    assert -9 in attempt.wait(60)
    again = start(home / "1", world, words)
    assert again.wait(60) == [0] * world, again.output()
    assert "going on after step" in again.output()
    return home / "run"


@pytest.mark.parametrize("world", [2, 4])
def test_deterministic_resumes_to_the_same_bits_on_the_same_number(tmp_path, world) -> None:
    """Four are where DDP's rebuilt buckets would show, left to itself."""
    words = [*WORDS, "--reproducibility", "deterministic", "--model.name", "dropnet"]
    whole = finish(tmp_path / "whole", words, world)
    assert_same_run(interrupted(tmp_path / "broken", words, world), whole)


def test_deterministic_does_not_go_on_with_another_number(tmp_path) -> None:
    words = [*WORDS, "--reproducibility", "deterministic", "--run", tmp_path / "run", "--resume"]
    attempt = start(tmp_path / "0", 2, words, {0: {"at": "lane", "count": 36, "signal": 15}})
    assert attempt.wait(60) == [75, 75], attempt.output()
    refused = start(tmp_path / "1", 1, words)
    assert refused.wait(60) == [2]
    assert "was started on 2 processes, and this is 1" in refused.output()
    again = start(tmp_path / "2", 2, words)
    assert again.wait(60) == [0, 0], again.output()


@pytest.mark.parametrize("level", ["fast", "deterministic"])
def test_other_levels_train_on_the_same_samples(tmp_path, level) -> None:
    """Through DDP, with a short last batch of which one process gets nothing."""
    words = [*WORDS, "--reproducibility", level, "--epochs", 0.4025, "--model.name", "mlp"]
    words += ["--numerics", "native"]
    one, two = (
        json.loads((finish(tmp_path / str(n), words, n) / "result.json").read_text())
        for n in (1, 2)
    )
    assert one["samples"] == two["samples"] == 578  # 6 × 96 + 2
    assert one["metrics"]["loss"] == pytest.approx(two["metrics"]["loss"], rel=1e-3)


def test_fast_may_have_uneven_shares(tmp_path) -> None:
    """DDP's mean over processes of which one ran five lanes, another two, and the third one."""
    words = [*WORDS, "--reproducibility", "fast", "--epochs", 0.4025, "--model.name", "mlp"]
    words += ["--numerics", "native"]
    one = json.loads((finish(tmp_path / "1", words) / "result.json").read_text())
    told = {rank: {"SHARES": "5,2,1"} for rank in range(3)}
    attempt = start(tmp_path / "log", 3, [*words, "--run", tmp_path / "run"], variables=told)
    assert attempt.wait(240) == [0, 0, 0], attempt.output()
    three = json.loads((tmp_path / "run/result.json").read_text())
    assert one["samples"] == three["samples"] == 578
    assert one["metrics"]["loss"] == pytest.approx(three["metrics"]["loss"], rel=1e-3)


def test_nobody_waits_for_the_buffers_of_a_process_that_has_nothing_to_do(tmp_path) -> None:
    """DDP would hand batch norm's averages out before a pass, and the other one has none."""
    words = [*WORDS, "--reproducibility", "deterministic", "--epochs", 0.4025]
    assert (finish(tmp_path / "2", words, 2) / "result.json").exists()
