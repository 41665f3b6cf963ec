"""A run that begins with the weights of another one: what is said of what differs."""

import shutil
from collections import OrderedDict

import pytest
from PIL import Image
from safetensors.torch import save_file
from test_finetune import pictures
from torch import nn

from host.errors import UsageError
from train.config import Config, Model
from train.learn import models, pretrained


def net(channels: int, classes: int) -> nn.Module:
    parts = {"stem": nn.Conv2d(channels, 4, 3), "pool": nn.AdaptiveAvgPool2d(1)}
    parts |= {"flat": nn.Flatten(), "fc": nn.Linear(4, classes)}
    return nn.Sequential(OrderedDict(parts))


def test_the_tensor_that_is_named_is_none_of_the_last_layer(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(net(1, 10).state_dict(), file)
    with pytest.raises(UsageError, match=r"stem\.weight does not fit: it is 4×3×3×3 here"):
        pretrained.load(net(3, 4), Model(weights=str(file)))
    pretrained.load(net(1, 4), Model(weights=str(file)))


@pytest.mark.slow
def test_other_classes_and_other_pixels_are_told(cli, tmp_path) -> None:
    pictures(tmp_path / "data")
    fit = [
        "fit", "--config", "configs/digits.yaml", "--numerics", "native", "--batch_size", 30,
        "--lanes", 2, "--max_steps", 2, "--optim.warmup", 0, "--augment.pad", 0,
        "--data.source", "folder", "--data.holdout", 0.2, "--data.cache_dir", tmp_path / "cache",
    ]  # fmt: skip
    first = tmp_path / "first"
    done = cli(*fit, "--data.root", tmp_path / "data", "--run", first)
    assert done.code == 0, done.err
    weights = ["--model.weights", first / "checkpoints/latest/model.safetensors"]

    same = cli(*fit, *weights, "--data.root", tmp_path / "data", "--run", tmp_path / "same")
    assert same.code == 0, same.err
    assert "weights to begin with" not in same.out
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "data", other)
    for split in other.iterdir():
        (split / "none").rename(split / "neither")
        for file in split.rglob("*.png"):
            Image.open(file).point(lambda value: value // 2).save(file)
    done = cli(*fit, *weights, "--data.root", other, "--run", tmp_path / "second")
    assert done.code == 0, done.err
    assert "of other classes (left, none, right), and of as many" in done.out
    [told] = [line for line in done.out.splitlines() if "saw pictures normalised" in line]
    asked = told.partition("otherwise: ")[2].removesuffix(" does as they did").replace("'", "")
    words = asked.replace(" --data.std ", "|").removeprefix("--data.mean ").split("|")
    stated = ["--data.mean", words[0], "--data.std", words[1]]
    done = cli(*fit, *weights, *stated, "--data.root", other, "--run", tmp_path / "third")
    assert done.code == 0, done.err
    assert "saw pictures normalised" not in done.out

    (other / "validation/left/empty.png").touch()
    measure = ["evaluate", "--run", tmp_path / "second", "--data.root", other]
    assert "--data.on_bad skip" in cli(*measure).err
    done = cli(*measure, "--data.on_bad", "skip")
    assert done.code == 0, done.err
    assert "left out: 1 picture that cannot be used" in done.err


@pytest.mark.slow
def test_what_a_table_s_weights_measure_may_lie_in_class_folders(cli, tmp_path) -> None:
    pictures(tmp_path / "data")
    table = tmp_path / "data/metadata.csv"
    rows = ["file_name,side,split"]
    for file in sorted((tmp_path / "data").rglob("*.png")):
        split, side, _ = name = file.relative_to(tmp_path / "data").parts
        rows.append(f"{'/'.join(name)},{side},{split}")
    table.write_text("\n".join(rows))
    done = cli(
        "fit", "--config", "configs/digits.yaml", "--numerics", "native", "--batch_size", 30,
        "--lanes", 2, "--max_steps", 2, "--optim.warmup", 0, "--augment.pad", 0,
        "--data.source", "folder", "--data.root", tmp_path / "data", "--data.label_column", "side",
        "--data.cache_dir", tmp_path / "cache", "--run", tmp_path / "run",
    )  # fmt: skip
    assert done.code == 0, done.err
    same = cli("evaluate", "--run", tmp_path / "run")
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    (tmp_path / "other/metadata.csv").unlink()
    measure = ["evaluate", "--run", tmp_path / "run", "--data.root", tmp_path / "other"]
    told = cli(*measure)
    assert (told.code, "→ take it away: --data.label_column null" in told.err) == (2, True)
    done = cli(*measure, "--data.label_column", "null")
    assert done.code == 0, done.err
    assert done.out == same.out


@pytest.mark.parametrize("said", ["5", "[]", "{", '{"step": 3}'])
def test_a_state_beside_the_weights_that_is_no_run_s_is_passed_over(cli, tmp_path, said) -> None:
    fit = ["fit", "--config", "configs/digits.yaml", "--max_steps", 1, "--optim.warmup", 0]
    file = tmp_path / "model.safetensors"
    save_file(models.build(Config().model, 10, (1, 8, 8)).state_dict(), file)
    (tmp_path / "state.json").write_text(said)
    done = cli(*fit, "--model.weights", file, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    assert "weights to begin with" not in done.out


@pytest.mark.slow
def test_a_picture_that_is_not_there(finished, cli, tmp_path) -> None:
    done = cli("predict", "--run", finished, tmp_path / "none.png")
    assert (done.code, "→ name a file or folder that is there" in done.err) == (3, True)
