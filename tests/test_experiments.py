"""The experiments that come with it: each trains, on noise of its data's shape."""

import re
from pathlib import Path

import pytest
from conftest import ROOT
from fault.harness import processes

pytestmark = pytest.mark.slow

SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))
SHAPES = {"digits": (8, 1), "fashion-mnist": (28, 1)}  # others in colour, of data.size or 32


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_trains_three_steps(tmp_path, path: Path) -> None:
    size, channels = SHAPES.get(path.stem, (None, 3))
    batch = 8 if path.stem == "imagenet" else 4  # which repeats its samples
    # Of the large ones only the training: what is examined before it takes minutes.
    level = "fast" if path.stem in ("imagenet", "imagenet-16", "vit-s16") else "lockstep"
    done = processes(
        1, "fit", "--config", path, "--run", tmp_path / "run", "--data.source", "synthetic",
        "--reproducibility", level, "--data.root", "null", "--data.channels", channels,
        *(["--data.size", size] if size else []), "--data.holdout", 0.01, "--data.workers", 0,
        "--batch_size", batch, "--lanes", batch // 2, "--max_steps", 3, "--eval.batch_size", 4,
        "--model.weights", "null", "--data.cache_dir", tmp_path / "cache",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "after 3 steps" in done.out


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_its_head_says_where_its_accuracy_comes_from(path: Path) -> None:
    head = path.read_text().split("\nname:")[0]
    assert f"CONFIG=configs/{path.name}" in head or path.stem == "digits"
    assert re.search(r"Run here: .*\d %|[Nn]ot run\s(# )?here", head), head
