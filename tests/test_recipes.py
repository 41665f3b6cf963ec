"""Each part of a recipe: the same bits on any number of processes and loaders, and after a kill.

CI takes all of them in three runs; RECIPE_STEPS=300 takes each by itself, for so many steps.
"""

import os
from typing import Any

import pytest
from fault.harness import assert_same_run, finish, start

pytestmark = pytest.mark.slow

STEPS = int(os.environ.get("RECIPE_STEPS", "0"))
PARTS: dict[str, list[Any]] = {
    "randaugment": ["--augment.policy", "randaugment"],
    "strong randaugment": [
        "--augment.policy", "randaugment", "--augment.policy_operations", 4,
        "--augment.policy_strength", 25,
    ],
    "trivialaugment": ["--augment.policy", "trivialaugment"],
    "autoaugment": ["--augment.policy", "autoaugment"],
    "brightness": ["--augment.brightness", 0.4],
    "contrast": ["--augment.contrast", 0.4],
    "colours": [
        "--data.channels", 3, "--augment.saturation", 0.4, "--augment.hue", 0.1,
        "--augment.grey", 0.2,
    ],
    "erasing": ["--augment.erasing", 0.5],
    "mixup": ["--augment.mixup", 0.4],
    "cutmix": ["--augment.cutmix", 1],
    "mixup and cutmix": ["--augment.mixup", 0.2, "--augment.cutmix", 1],
    "average of the weights": ["--optim.ema", 0.95],
    "bce": ["--optim.loss", "bce", "--optim.label_smoothing", 0.1],
    "class weights": ["--optim.class_weights", "balanced"],
    "poly": ["--optim.schedule", "poly", "--optim.warmup", 0, "--optim.warmup_epochs", 0.5],
    "one cycle": ["--optim.schedule", "onecycle", "--optim.warmup", 0],
    "frozen": ["--model.freeze", 0, "--model.freeze", 1],
    "lamb": ["--optim.name", "lamb", "--optim.lr", 0.01],
    "muon": ["--optim.name", "muon", "--optim.lr", 0.01],
    "layer decay": ["--optim.layer_decay", 0.8],
    "stochastic depth": [
        "--model.name", "timm:test_resnet", "--model.drop_path", 0.4, "--data.size", 32,
    ],
    "stochastic depth of a resnet": [
        "--model.name", "resnet18", "--model.stem", "small", "--model.drop_path", 0.4,
    ],
    "repeats": ["--augment.repeats", 3],
    "balanced": ["--data.balanced", True],
    "growing windows": [
        "--data.size", 12, "--augment.crop", "[0.5, 1]", "--augment.sizes", "[8, 10]",
        "--augment.until", "[0.3, 0.6]",
    ],
    "validation images": ["--data.size", 12, "--eval.size", 16, "--eval.crop", 14],
}  # fmt: skip
TOGETHER = [
    ["randaugment", "erasing", "mixup and cutmix", "average of the weights", "class weights",
     "stochastic depth", "repeats"],
    ["trivialaugment", "brightness", "contrast", "cutmix", "one cycle", "frozen", "lamb",
     "layer decay"],
    ["autoaugment", "colours", "mixup", "bce", "poly", "muon", "balanced", "growing windows",
     "validation images"],
]  # fmt: skip
CASES = PARTS
if not STEPS:
    CASES = {", ".join(names): [w for name in names for w in PARTS[name]] for names in TOGETHER}


@pytest.mark.parametrize("knobs", CASES.values(), ids=CASES)
def test_a_part_of_a_recipe_gives_the_same_bits(tmp_path, knobs) -> None:
    steps = STEPS or 14
    words: list[Any] = [
        "fit", "--config", "configs/digits.yaml", "--batch_size", 96, "--lanes", 8, "--epochs", 99,
        "--max_steps", steps, "--eval.every", steps // 2, "--checkpoint.every", 5,
        "--log.every", 1, "--numerics", "native", *knobs,
    ]  # fmt: skip
    patience = 240 + 4 * STEPS  # seconds
    one = finish(tmp_path / "1", words, seconds=patience)
    for world in (2, 4):
        workers = ["--data.workers", 2 if world == 2 else 0]
        assert_same_run(
            finish(tmp_path / str(world), [*words, *workers], world, seconds=patience), one
        )
    again = [*words, "--run", tmp_path / "killed", "--resume"]
    strike = {"at": "lane", "count": (steps // 2 + 2) * 8, "signal": 9}
    assert start(tmp_path / "log", 1, again, {0: strike}).wait(patience) == [-9]
    rest = start(tmp_path / "rest", 2, again)
    assert rest.wait(patience) == [0, 0], rest.output()
    assert "going on after step" in rest.output()
    assert_same_run(tmp_path / "killed", one)
