"""From a file of weights, with another head and frozen parts: trained, resumed, measured."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from fault import harness
from PIL import Image
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow


def pictures(root: Path) -> None:
    """Grey ones of 8×8 pixels in three classes: left half bright, right half bright, neither."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 30), ("validation", 10)):
        for number, name in enumerate(("left", "right", "none")):
            (root / split / name).mkdir(parents=True)
            for each in range(count):
                pixels = draw.integers(0, 120, (8, 8))
                if number < 2:
                    pixels[:, 4 * number : 4 * number + 4] += 100
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / name / f"{each}.png")


def test_another_head_on_frozen_features(tmp_path) -> None:
    fit = ["fit", "--config", ROOT / "configs/digits.yaml", "--optim.warmup", 2]
    assert harness.processes(1, *fit, "--max_steps", 20, "--run", tmp_path / "first").code == 0
    file = tmp_path / "first/checkpoints/step-00000020/model.safetensors"
    pictures(tmp_path / "data")
    words = [
        *fit, "--data.source", "folder", "--data.root", tmp_path / "data", "--data.holdout", 0.2,
        "--data.cache_dir", tmp_path / "cache", "--model.weights", file, "--batch_size", 30,
        "--lanes", 2, "--max_steps", 12, "--checkpoint.every", 4, "--numerics", "native",
        "--model.freeze", "0", "--model.freeze", "1", "--augment.pad", 0,
    ]  # fmt: skip
    done = harness.processes(1, *words, "--run", tmp_path / "one")
    assert done.code == 0, done.err
    assert f"weights: 24 of 26 tensors from {file}; made anew:" in done.out
    assert "  15.weight: 3×64, there 10×64" in done.out
    assert "of them trained, lockstep" in done.out
    kept = load_file(tmp_path / "one/checkpoints/step-00000012/model.safetensors")
    before = load_file(file)
    same = {name for name in before if before[name].equal(kept[name])}
    assert same == {name for name in before if name.split(".")[0] in ("0", "1")}

    # After the second save, which waits for the first.
    strike = {"at": "lane", "count": 10 * 2, "signal": signal.SIGKILL}
    killed = [*words, "--run", tmp_path / "two", "--resume"]
    assert harness.start(tmp_path / "log", 1, killed, {0: strike}).wait(60) == [-9]
    again = harness.processes(2, *killed)
    assert again.code == 0, again.err
    assert re.search("going on after step [48] ", again.out), again.out
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("one", "two")]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    measured = harness.processes(1, "evaluate", "--run", tmp_path / "one")
    assert json.loads(measured.out)["loss"] == results[0]["metrics"]["loss"]

    save_file({name: 2 * tensor for name, tensor in before.items()}, file)
    again = harness.processes(1, "reproduce", tmp_path / "one")
    assert again.code == 2
    assert f"{file} holds other weights than {tmp_path / 'one'} began with" in again.err
