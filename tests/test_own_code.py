"""A model, a data set and a loss of the user's, by dotted path: same bits, resumed, recorded."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Outcome, one_line
from fault import harness

from host import dotted

BLOCKS = """from torch import nn


def block(inputs, outputs):
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.GELU()]
    return nn.Sequential(*layers)
"""
NETS = """from torch import nn

from mine.blocks import block


def build(classes, shape):
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, classes)]
    return nn.Sequential(block(shape[0], 16), *flat)


def number(classes, shape):
    return 5


def borrowed(classes, shape):
    import mmcls.models


def none(classes, shape):
    raise ValueError("no such luck")
"""
DATA = """import numpy as np
from sklearn.datasets import load_digits


def tables(config):
    digits = load_digits()
    pixels = (digits.images * 15).astype(np.uint8)
    return (pixels[:1400], digits.target[:1400]), (pixels[1400:], digits.target[1400:])
"""
LOSSES = """import torch
from torch.nn import functional


def focal(logits, labels):
    loss = functional.cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-loss)) ** 2 * loss


def mean(logits, labels):
    return functional.cross_entropy(logits, labels)


def words(logits, labels):
    return "low"


def both(logits, labels):
    return functional.cross_entropy(logits, labels, reduction="none"), {}


def rooted(logits, labels):
    return functional.cross_entropy(logits, labels, reduction="none").sqrt()


def fails(logits, labels):
    raise KeyError("weights")
"""
CONFIG = ["--config", ROOT / "configs" / "digits.yaml"]
KNOBS = {
    "model.name": "mine.nets:build",
    "data.source": "mine.data:tables",
    "data.holdout": "0.2",
    "optim.loss": "mine.losses:focal",
    "optim.label_smoothing": "0",
    "numerics": "native",
}
MINE = [word for knob, value in KNOBS.items() for word in (f"--{knob}", value)]


@pytest.fixture
def mine(tmp_path) -> Path:
    """A package of the user's in a directory that is not the checkout."""
    package = tmp_path / "mine"
    package.mkdir()
    files = {"__init__": "", "blocks": BLOCKS, "nets": NETS, "data": DATA, "losses": LOSSES}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return tmp_path


def run(where: Path, *words: object, processes: int = 1) -> Outcome:
    return harness.processes(processes, *words, where=where)


def typed(where: Path, *words: object) -> Outcome:
    """`python -m train`, or torchrun, as people call it."""
    path = {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=where, env={**os.environ, **path}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def weights(run: Path) -> str:
    return str(json.loads((run / "result.json").read_text())["weights_sha256"])


@pytest.mark.slow
@pytest.mark.timeout(600)  # beside other tests
def test_it_trains_to_the_same_bits_resumes_and_is_reproduced(mine) -> None:
    length = ["--max_steps", 30, "--checkpoint.every", 5]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "--"]
    for path, launcher in (("p1", []), ("p2", torchrun)):
        words = ["fit", *CONFIG, *MINE, *length, "--run", mine / path]
        done = typed(mine, *launcher, "train", *words)
        assert done.code == 0, done.err
    assert weights(mine / "p1") == weights(mine / "p2")
    words = ["fit", *CONFIG, *MINE, *length, "--run", mine / "killed", "--resume"]
    in_step_11 = {"at": "lane", "count": 8 * 10 + 3, "signal": signal.SIGKILL}
    killed = harness.start(
        mine / "log", 1, words, {0: in_step_11}, variables={0: {"WORK": str(mine)}}
    )
    assert killed.wait(60) == [-signal.SIGKILL], killed.output()
    # The tenth may still have been in the writing.
    assert list((mine / "killed/checkpoints").glob("step-*"))
    assert run(mine, *words, processes=2).code == 0
    assert weights(mine / "killed") == weights(mine / "p1")

    record = json.loads((mine / "p2" / "run.json").read_text())
    assert set(record["own_code"]) == {
        "mine", "mine.blocks", "mine.data", "mine.losses", "mine.nets"
    }  # fmt: skip
    again = typed(mine, "train", "reproduce", "p1", "--cpus", 2)
    assert again.code == 0, again.err
    assert "same bits: all 30 steps" in again.out
    assert run(mine, "evaluate", "--run", "p1").err.count("warning") == 0

    # Another file of theirs, which is imported by the one that is named.
    (mine / "mine/blocks.py").write_text(BLOCKS.replace("GELU", "SiLU"))
    again = run(mine, "reproduce", "p1")
    assert again.code == 2
    assert "your own code changed since: mine.blocks → restore it" in one_line(again.err)
    measured = run(mine, "evaluate", "--run", "p1")
    assert measured.code == 0
    assert "warning: your own code changed since the training: mine.blocks" in measured.err
    elsewhere = run(mine / "mine", "reproduce", "../p1")
    assert elsewhere.code == 2
    assert "not found: mine → put mine into this folder, or a link to it" in one_line(elsewhere.err)
    elsewhere = run(mine / "mine", "evaluate", "--run", "../p1")
    assert "not found: mine → put mine into this folder, or a link to it" in one_line(elsewhere.err)
    (mine / "mine/blocks.py").unlink()
    assert "your own code changed since: mine.blocks" in run(mine, "reproduce", "p1").err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knob", "value", "said"),
    [
        ("model.name", "mine.nets:number", "mine.nets:number returned int → return an nn.Module"),
        ("model.name", "mine.nets:none", "ValueError: no such luck"),
        ("model.name", "mine.nets:borrowed", "add mmcls to requirements/common.in, then make lock"),
        ("model.name", "mine.nets:bild", "has no function bild; did you mean build?"),
        ("model.name", "mine.netz:build", "mend the name; did you mean mine.nets?"),
        ("model.name", "nine.nets:build", "put nine into this folder, or a link to it"),
        ("optim.loss", "mine.losses:mean", "returned one number for 4 samples → return"),
        ("optim.loss", "mine.losses:words", "returned str for 4 samples"),
        ("optim.loss", "mine.losses:both", "a tensor [B], and nothing beside it"),
        ("optim.loss", "mine.losses:rooted", "the model calls sqrt, which other makers"),
        ("optim.loss", "mine.losses:fails", "failed (KeyError: 'weights')"),
        ("optim.loss", "focal", "optim.loss: focal names no function → say bce, or name one"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_one_line(mine, knob, value, said) -> None:
    words = ["--optim.label_smoothing", 0] if "loss" in knob else []
    done = run(mine, "fit", *CONFIG, *words, f"--{knob}", value, "--run", "x")
    assert done.code == 2
    assert said in one_line(done.err)


@pytest.mark.slow
def test_an_import_that_seeds_changes_nothing(mine) -> None:
    """Whether a module is imported sooner or later depends on the number of processes."""
    text = "import torch\n\ntorch.manual_seed(0)\n" + NETS
    (mine / "mine/nets.py").write_text(text)
    words = ["fit", *CONFIG, "--numerics", "native", "--model.name", "mine.nets:build"]
    found = set()
    for seed, processes in ((5, 1), (5, 2), (6, 1)):
        path = mine / f"s{seed}p{processes}"
        more = ["--seed", seed, "--max_steps", 3, "--run", path]
        done = run(mine, *words, *more, processes=processes)
        assert done.code == 0, done.err
        found.add(weights(path))
    assert len(found) == 2


def test_which_files_are_the_user_s(mine, monkeypatch) -> None:
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(dotted, "_SEEN", {})
    monkeypatch.syspath_prepend(mine / "venv/lib/python3.11/site-packages")
    installed = mine / "venv/lib/python3.11/site-packages/theirs.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("x = 1\n")
    (mine / "elsewhere").mkdir()
    (mine / "elsewhere/blocks.py").write_text("x = 1\n")
    text = "import mine.blocks\nimport theirs\n\n\ndef f():\n    pass\n"
    (mine / "beside.py").write_text(text)
    (mine / "mine/blocks.py").unlink()
    (mine / "mine/blocks.py").symlink_to("../elsewhere/blocks.py")
    try:
        dotted.load("model.name", "beside:f")
        found = dotted.imported(["beside:f"])
        assert set(found) == {"beside", "mine", "mine.blocks"}
        assert dotted.changed(found) == []
        assert dotted.imported([]) == {}
        (mine / "mine/blocks.py").write_text("x = 2\n")
        assert dotted.imported(["beside:f"]) == found  # what ran, and not what is there now
        (mine / "beside.py").unlink()
        assert dotted.changed(found) == ["beside", "mine.blocks"]
        assert dotted.changed({"nowhere.at.all": "0"}) == ["nowhere.at.all"]
        assert dotted.changed({"json.tool.main": "0"}) == ["json.tool.main"]
    finally:
        for name in ("beside", "mine", "mine.blocks", "theirs"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("nets", "nets:build"), ("nets.py", "nets:build"), ("./nets.py:build", "nets:build"),
        ("nets.build", "nets:build"), ("nets.py:FUNCTION", "nets:build"),
        ("inner/losses.py", "inner.losses:FUNCTION"), ("inner.losses.focal", "inner.losses:focal"),
        ("inner/losses.py:other", "inner.losses:other"), ("resnet18", ""),
        ("timm:nets", ""), ("/nets.py", ""), ("broken", "broken:FUNCTION"),
    ],
)  # fmt: skip
def test_a_file_in_place_of_a_function_is_understood(tmp_path, monkeypatch, said, told) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "nets.py").write_text("def build(classes, shape): ...\n")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "inner/losses.py").write_text("def focal(): ...\ndef other(): ...\n")
    monkeypatch.chdir(tmp_path)
    hint = dotted.meant(said)
    assert (hint.split(" say ")[-1] if hint else "") == told


def test_the_hint_is_given_for_a_model_a_source_and_a_loss(tmp_path, monkeypatch, cli) -> None:
    (tmp_path / "nets.py").write_text("def build(classes, shape): ...\n")
    monkeypatch.chdir(tmp_path)
    for knob in ("model.name", "optim.loss", "data.source"):
        done = cli("fit", "--config", ROOT / "configs/digits.yaml", f"--{knob}", "nets.py")
        assert done.code in (2, 3), done.err
        assert "for yours in nets.py say nets:build" in done.err, (knob, done.err)
