"""The experiments that come with it: each trains, on noise of its data's shape."""

import re
from pathlib import Path

import pytest
from conftest import SHIPPED
from fault.harness import assert_same_run, processes

pytestmark = pytest.mark.slow

# The large ones are examined and train to the same bits in a size that takes less time.
SMALL = {
    "imagenet": ["--data.size", 64],
    "imagenet-16": ["--data.size", 64, "--augment.sizes", "[48]"],
    "vit-s16": ["--data.size", 32],
    "finetune": ["--data.size", 64],
}
SHAPES = {"digits": (8, 1), "fashion-mnist": (28, 1)}  # others in colour, of data.size or 32


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_trains_three_steps(tmp_path, path: Path) -> None:
    size, channels = SHAPES.get(path.stem, (None, 3))
    batch = 8 if path.stem == "imagenet" else 4  # which repeats its samples
    words = [
        "fit", "--config", path, "--data.source", "synthetic", "--data.root", "null",
        "--data.channels", channels, *(["--data.size", size] if size else []),
        "--data.holdout", 0.01, "--data.workers", 0, "--batch_size", batch, "--lanes", batch // 2,
        "--max_steps", 3, "--eval.batch_size", 4, "--model.weights", "null",
        "--data.cache_dir", tmp_path / "cache",
    ]  # fmt: skip
    # Of the large ones only the training: what is examined before it takes minutes.
    level = "fast" if path.stem in SMALL else "lockstep"
    done = processes(1, *words, "--reproducibility", level, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    assert "after 3 steps" in done.out
    small = [*SMALL.get(path.stem, []), "--eval.size", 64, "--eval.crop", 32]
    if path.stem in SMALL:
        runs = [tmp_path / str(world) for world in (1, 2)]
        for world, run in enumerate(runs, 1):
            done = processes(world, *words, *small, "--run", run)
            assert done.code == 0, done.err
        assert_same_run(*runs)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_its_head_says_where_its_accuracy_comes_from(path: Path) -> None:
    head = path.read_text().split("\nname:")[0]
    assert f"CONFIG=configs/{path.name}" in head or path.stem == "digits"
    assert re.search(r"Run here: .*\d %|[Nn]ot run\s(# )?here", head), head
