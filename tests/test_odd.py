"""Pictures of every kind that people come with: read as they look, or named with a reason."""

import json
import re
from pathlib import Path

import numpy as np
import odd
import pytest
from conftest import ROOT, one_line

from host.errors import DataError
from train.config import Data
from train.data import load
from train.data.unusable import by_reason

KNOBS = {"source": "folder", "size": 16}
PAGE = (ROOT / "docs" / "data.md").read_text()
_GOOD = 12 + 6  # training and validation pictures beside the odd ones


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return odd.make(tmp_path_factory.mktemp("odd") / "data")


@pytest.fixture(scope="module")
def found(root):
    return load(Data(**KNOBS, root=str(root), on_bad="skip"))


def test_there_are_many_kinds() -> None:
    assert len(odd.KINDS) == len({kind.name for kind in odd.KINDS}) >= 80
    assert len(odd.BAD) >= 25


def test_all_that_cannot_be_read_is_counted_and_nothing_is_trained(root) -> None:
    total = _GOOD + len(odd.KINDS) - len(odd.LEFT_OUT)
    with pytest.raises(DataError) as raised:
        load(Data(**KNOBS, root=str(root)))
    assert f"{len(odd.BAD)} of {total} pictures cannot be used: " in raised.value.problem
    assert "--data.on_bad skip" in raised.value.fix


@pytest.mark.parametrize("kind", odd.KINDS, ids=lambda kind: kind.name.strip())
def test_a_kind(found, kind) -> None:
    name = f"train/odd/{kind.name}"
    if kind.name in odd.BAD:
        assert kind.bad in found.skipped[name]
        return
    if kind.left_out:
        assert found.left_out[name] == kind.left_out
        return
    names = [found.train.pictures.name(n) for n in range(len(found.train))]
    pixels = found.train.pixels(names.index(name))
    if kind.seen is not None:
        middle = pixels.shape[0] // 2
        for place, wanted in zip((0, -1), kind.seen, strict=True):
            assert np.abs(pixels[middle, place].astype(int) - np.array(wanted)).max() <= kind.near


def test_the_others_are_trained_on(found) -> None:
    assert set(found.skipped) == {f"train/odd/{name}" for name in odd.BAD}
    assert set(found.left_out) == {f"train/odd/{name}" for name in odd.LEFT_OUT}
    good = len(odd.KINDS) - len(odd.BAD) - len(odd.LEFT_OUT)
    assert (len(found.train), len(found.validation)) == (12 + good, 6)
    assert found.train.shape == (3, 16, 16)
    again = load(Data(**KNOBS, root=found.train.pictures.files.root, on_bad="skip"))
    assert again.sha256 == found.sha256


def test_sizes_that_do_not_fit_are_one_reason() -> None:
    small = {f"{n}.png": f"is {n} x 20, and is to be 32 x 32" for n in range(4)}
    said = by_reason(small | {"a.png": "is cut short", "b.png": "is cut short"})
    assert said == (
        "0.png, 1.png, 2.png and 1 more (is 0 x 20, and is to be 32 x 32, and so on);"
        " a.png, b.png (is cut short)"
    )


def test_the_page_on_data_names_each_kind() -> None:
    rows = re.findall(r"^\| (read|refused, or skipped|left out) \| (.+) \|$", PAGE, re.MULTILINE)
    stated = {title: listed.split("; ") for title, listed in rows}
    bad = [kind.what for kind in odd.KINDS if kind.name in odd.BAD]
    left = [kind.what for kind in odd.KINDS if kind.left_out]
    read = [k.what for k in odd.KINDS if k.name not in odd.BAD | odd.LEFT_OUT]
    assert stated == {"read": read, "refused, or skipped": bad, "left out": left}


def test_the_record_lists_them(root, cli, tmp_path) -> None:
    run = tmp_path / "run"
    knobs = ["--data.source", "folder", "--data.root", root, "--data.size", "16"]
    knobs += ["--batch_size", "8", "--lanes", "1", "--max_steps", "2", "--model.name", "mlp"]
    done = cli("fit", *knobs, "--run", run)
    assert done.code == 3
    assert f"{len(odd.BAD)} of " in one_line(done.err)
    done = cli("fit", *knobs, "--data.on_bad", "skip", "--run", run)
    assert done.code == 0, done.err
    assert f"warning: {len(odd.BAD)} of" in done.out
    said = json.loads((run / "run.json").read_text())["data"]
    assert said["skipped"]["count"] == len(odd.BAD)
    assert said["left_out"]["why"]["train/odd/notes.txt"] == "no picture"
    assert said["skipped"]["why"]["train/odd/nothing.jpg"] == "it is empty"
