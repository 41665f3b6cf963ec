"""One hash on 1, 2, 4 and 8 processes: the promise on the label; and what other levels promise."""

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
    "channels last, deeper": [
        "--model.name", "resnet18", "--model.stem", "small", "--model.channels_last", "true",
        "--max_steps", 2, "--batch_size", 32,
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


def test_nobody_waits_for_the_buffers_of_a_process_that_has_nothing_to_do(tmp_path) -> None:
    """DDP would hand batch norm's averages out before a pass, and the other one has none."""
    words = [*WORDS, "--reproducibility", "deterministic", "--epochs", 0.4025]
    assert (finish(tmp_path / "2", words, 2) / "result.json").exists()
