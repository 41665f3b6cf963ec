"""Losses and weights of classes; and runs that end early."""

import json
import signal

import pytest
import torch
from conftest import ROOT
from fault import harness
from torch.nn import functional

from train.config.optim import Optim
from train.learn import loss

LOGITS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0] * 40 + [1] * 15 + [2] * 5)


def test_bce_is_torchs_of_smoothed_targets() -> None:
    for smoothing in (0.0, 0.1):
        ours = loss.build(Optim(loss="bce", label_smoothing=smoothing))(LOGITS, LABELS)
        targets = functional.one_hot(LABELS, 3) * (1 - smoothing) + smoothing / 3
        expected = functional.binary_cross_entropy_with_logits(LOGITS, targets, reduction="none")
        assert torch.allclose(ours, expected.mean(1))


def test_balanced_weights_count_each_class_alike() -> None:
    plain = loss.build(Optim())(LOGITS, LABELS)
    weighted = loss.build(Optim(class_weights="balanced"), LABELS, 3)(LOGITS, LABELS)
    means = [plain[c == LABELS].mean() for c in range(3)]
    assert torch.allclose(weighted.mean(), torch.stack(means).mean())
    expected = functional.cross_entropy(
        LOGITS, LABELS, weight=torch.tensor([60 / 120, 60 / 45, 60 / 15]), reduction="none"
    )
    assert torch.allclose(weighted, expected)
    # A class that nobody has is no matter.
    assert loss.build(Optim(class_weights="balanced"), LABELS, 4)(LOGITS, LABELS).isfinite().all()


# At this rate nothing is learned: no evaluation is better than the first one for long.
STUCK = [
    "fit", "--config", ROOT / "configs/digits.yaml", "--optim.lr", 1e-9, "--optim.warmup", 0,
    "--eval.every", 4, "--eval.patience", 2, "--checkpoint.every", 100, "--max_steps", 60,
]  # fmt: skip


@pytest.mark.slow
def test_a_run_that_gets_no_better_ends_early_to_the_same_bits(tmp_path) -> None:
    def result(run: str) -> dict:
        return json.loads((tmp_path / run / "result.json").read_text())

    done = harness.processes(1, *STUCK, "--run", tmp_path / "one")
    assert done.code == 0, done.err
    steps = result("one")["steps"]
    assert steps < 60
    assert steps == result("one")["best"]["step"] + 8
    assert f"no evaluation was better than that of step {steps - 8}" in done.out
    assert (tmp_path / f"one/checkpoints/step-{steps:08}").is_dir()
    assert harness.processes(2, *STUCK, "--run", tmp_path / "two").code == 0
    # Killed while the last checkpoint is written, and after it.
    for count, name in ((8 * (steps - 2), "early"), (8 * steps, "late")):
        words = [*STUCK, "--run", tmp_path / name, "--resume"]
        strike = {"at": "lane", "count": count, "signal": signal.SIGKILL}
        killed = harness.start(tmp_path / f"log-{name}", 1, words, {0: strike})
        assert killed.wait(60) in ([-signal.SIGKILL], [0])
        assert harness.processes(1, *words).code == 0
    again = harness.processes(1, "reproduce", tmp_path / "one", where=tmp_path)
    assert again.code == 0, again.err
    for name in ("two", "early", "late"):
        for what in ("steps", "samples", "weights_sha256", "metrics", "best"):
            assert result(name)[what] == result("one")[what], (name, what)


@pytest.mark.slow
def test_a_run_that_had_ended_early_does_not_go_on(tmp_path) -> None:
    """Its last checkpoint is there, its result is not: as after a kill between the two."""
    words = [*STUCK, "--run", tmp_path / "run"]
    assert harness.processes(1, *words).code == 0
    before = json.loads((tmp_path / "run/result.json").read_text())
    (tmp_path / "run/result.json").unlink()
    done = harness.processes(1, *words, "--resume")
    assert done.code == 0, done.err
    after = json.loads((tmp_path / "run/result.json").read_text())
    assert (after["steps"], after["weights_sha256"]) == (before["steps"], before["weights_sha256"])
    assert after["metrics"] == before["metrics"]
