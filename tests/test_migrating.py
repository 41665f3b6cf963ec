"""docs/MIGRATING.md: each old script beside our command, and each old launch line."""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, commands, one_line
from safetensors.torch import load_file, save_file

from train.config import Config
from train.experiment import batch

PAGE = (ROOT / "docs/MIGRATING.md").read_text()
# The old script, and how far its weights may lie from ours at the end.
PAIRS = {
    "parallel": 1e-5,
    "spawned": 1e-5,
    "mixed": 2e-2,
    "accumulated": 1e-5,
    "saved": 1e-5,
    "scaled": 1e-5,
}
LAUNCHERS = re.findall(r"\| `[^`]+` \| `([^`]+)`", PAGE)
PLACES = f"{os.environ['PATH']}:{ROOT}"


def section(name: str) -> tuple[str, list[str]]:
    """A script of the page, and the commands that stand for it."""
    (part,) = (part for part in PAGE.split("\n### ") if f"# {name}.py" in part)
    (script,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    return script, commands(part)


@pytest.fixture
def mine(local_copy: Path) -> Path:
    """A checkout with the task of the page in it."""
    files = re.findall(r"```\w+\n# (my_package/\S+|configs/\S+)\n(.*?)```", PAGE, re.DOTALL)
    for name, text in files:
        (local_copy / name).parent.mkdir(exist_ok=True)
        (local_copy / name).write_text(text)
    half = yaml.safe_load((local_copy / "configs/mine.yaml").read_text())
    half["optim"]["lr"], half["batch_size"] = 0.05, 718
    half["lanes"] = 2
    (local_copy / "configs/mine-half.yaml").write_text(yaml.safe_dump(half))
    torch.manual_seed(0)
    sizes = {"1": (32, 64), "3": (10, 32)}
    start = {}
    for name, size in sizes.items():
        start[f"{name}.weight"] = torch.randn(size) / size[1] ** 0.5
        start[f"{name}.bias"] = torch.zeros(size[0])
    save_file(start, local_copy / "start.safetensors")
    return local_copy


def run(folder: Path, line: str, **environ: str) -> str:
    done = subprocess.run(
        shlex.split(line), cwd=folder, env={**os.environ, "ENGINE": "local", **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def _stopped(folder: Path, line: str) -> None:
    """Run a training, and stop it once it has a checkpoint."""
    log = folder / "stopped.log"
    environ = {**os.environ, "ENGINE": "local"}
    with (
        log.open("w") as out,
        subprocess.Popen(
            shlex.split(line), cwd=folder, env=environ, stdout=out, stderr=out
        ) as started,
    ):
        deadline = time.monotonic() + 120
        while not list(folder.glob("runs/saved/checkpoints/step-*")):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        started.terminate()
    assert "stopped: a signal came; step" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_script_and_ours_end_in_the_same_weights(mine, name) -> None:
    script, lines = section(name)
    (mine / f"{name}.py").write_text(script.replace("PID", str(os.getpid())))
    python = f".venv/bin/python {name}.py"
    if name == "saved":
        run(mine, python, STOP="10", PYTHONPATH=".")
    run(mine, python, PYTHONPATH=".")
    for line in lines:
        if line is lines[0] and len(lines) == 2:
            _stopped(mine, line)
        else:
            assert "rule" not in run(mine, line)
    old = torch.load(mine / f"{name}.pt", weights_only=True)
    old = old.get("model", old)
    ours = load_file(mine / f"runs/{name}/checkpoints/latest/model.safetensors")
    assert ours.keys() == old.keys()
    apart = max(float((old[key] - ours[key]).abs().max()) for key in ours)
    print(f"{name}: {apart:.2g}")
    assert apart < PAIRS[name]
    begun = load_file(mine / "start.safetensors")
    assert max(float((begun[key] - ours[key]).abs().max()) for key in ours) > 0.05


@pytest.mark.slow
def test_a_search_and_ours_find_room_for_all_of_the_data(mine) -> None:
    script, (line,) = section("search")
    (mine / "search.py").write_text(script)
    assert run(mine, ".venv/bin/python search.py", PYTHONPATH=".").strip() == "1436"
    assert "the largest micro-batch is 1436" in run(mine, line)


@pytest.mark.slow
def test_old_weights_are_written_anew(tmp_path, monkeypatch) -> None:
    """A checkpoint as torchvision's references leave one: options beside it, channels last."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (script,) = re.findall(r"```python\n(# weights.py.*?)```", PAGE, re.DOTALL)
    wide = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    kept = {"model": {"conv.weight": wide}, "args": argparse.Namespace(lr=0.1), "epoch": 3}
    for saved in (kept, {"state_dict": kept["model"]}, kept["model"]):
        torch.save(saved, "old.pth")
        run(tmp_path, f"{sys.executable} -c {shlex.quote(script)}")
        assert torch.equal(load_file("runs/old.safetensors")["conv.weight"], wide)


@pytest.mark.slow
def test_the_old_launch_lines_train_to_the_bits_of_one(local_copy) -> None:
    short = "--max_steps 4 --log.report false"
    run(local_copy, f"make train RUN=runs/one CPUS=1 ARGS='{short}'")
    for number, line in enumerate(LAUNCHERS):
        own = line.replace("runs/old", f"runs/old{number}")
        words = f"{own} ARGS='{short}'" if line.startswith("make") else f"{own} {short}"
        if line.startswith("mpirun"):
            words = words.replace("mpirun", "mpirun --allow-run-as-root --oversubscribe")
        if line.startswith("srun") or shutil.which(shlex.split(line)[0], path=PLACES) is None:
            continue  # tests/slurm has the first
        run(local_copy, words, CUDA_VISIBLE_DEVICES="-1")
        assert weights(local_copy, f"old{number}") == weights(local_copy, "one"), line
        manifest = json.loads((local_copy / f"runs/old{number}/run.json").read_text())
        assert manifest["world_size"] == 2


def weights(folder: Path, name: str) -> str:
    return str(json.loads((folder / f"runs/{name}/result.json").read_text())["weights_sha256"])


def test_the_page_has_every_pair_and_launcher() -> None:
    assert len(LAUNCHERS) == 6
    found = re.findall(r"```python\n# (\w+)\.py", PAGE)
    assert found == ["start", *PAIRS, "search", "weights"]


@pytest.mark.parametrize(
    ("knobs", "name", "times", "rule", "rate"),
    [
        ({"batch_size": 1024}, "sgd", "8", "linear", "0.8"),
        ({"batch_size": 64}, "sgd", "0.5", "linear", "0.05"),
        ({"batch_size": 512}, "adamw", "4", "square-root", "0.2"),
        ({"batch_size": 128}, "sgd", None, "", ""),
        ({"batch_size": 256, "optim": {"lr": 0.1}}, "sgd", None, "", ""),
        ({"epochs": 3}, "sgd", None, "", ""),
    ],
)
def test_another_batch_is_told_the_rule(tmp_path, knobs, name, times, rule, rate) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("name: own\n")
    config = Config.model_validate({"optim": {"name": name}} | {k: knobs[k] for k in knobs})
    found = batch.advice(file, knobs, config)
    size = f"{knobs.get('batch_size', 0):,}"
    goes = f"by the {rule} rule it goes with --optim.lr {rate}; it stays 0.1"
    assert found == (f"batch {size} is {times} × 128 of {file}: {goes}" if times else None)
    assert batch.advice(None, knobs, config) is None


def test_the_rule_is_one_line_of_a_training(cli, tmp_path) -> None:
    words = ["--config", "configs/digits.yaml", "--run", tmp_path / "run", "--max_steps", 1]
    said = cli("fit", *words, "--batch_size", 256).out
    line = one_line("\n".join(each for each in said.splitlines() if " rule " in each))
    assert "batch 256 is 2 × 128 of configs/digits.yaml" in line
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["optim"]["lr"] == 0.1
