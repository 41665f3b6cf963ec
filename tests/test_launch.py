"""From make's variables to an `accelerate launch`, and back to an exit code."""

import os
import shlex
import subprocess
import sys

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from conftest import ROOT

from train import launch, outcome
from train.errors import HostError, TrainError, UsageError

WORDS = ["fit", "--config", "configs/digits.yaml"]


def line(visible: int, lanes: int = 8, **variables: str) -> str:
    words = launch.command(variables, WORDS, visible, lanes)
    assert words[0].endswith("accelerate")
    assert words[-len(WORDS) :] == WORDS
    return shlex.join(words[2 : -len(WORDS)]).replace("configs/accelerate/", "")


@pytest.mark.parametrize(
    ("visible", "variables", "expected"),
    [
        (0, {}, "cpu.yaml"),
        (4, {"CPUS": "1"}, "cpu.yaml"),
        (0, {"CPUS": "4"}, "multi_cpu.yaml --num_processes 4"),
        (
            0,
            {"PRECISION": "bf16"},
            "cpu.yaml --mixed_precision bf16",
        ),
        (2, {"GPUS": "0"}, "cpu.yaml"),
        (1, {}, "gpu.yaml"),
        (4, {}, "multi_gpu.yaml --num_processes 4"),
        (4, {"GPUS": "all"}, "multi_gpu.yaml --num_processes 4"),
        (4, {"GPUS": "2"}, "multi_gpu.yaml --num_processes 2"),
        (4, {"GPUS": "4", "PRECISION": "fp16"}, "fp16.yaml --num_processes 4"),
        (4, {"GPUS": "1", "PRECISION": "bf16"}, "bf16.yaml --num_processes 1"),
        (6, {}, "multi_gpu.yaml --num_processes 4"),
        (16, {"PRECISION": "bf16"}, "bf16.yaml --num_processes 8"),
        (3, {"GPUS": "3"}, "multi_gpu.yaml --num_processes 3"),
        (4, {"ACCELERATE": "gpu"}, "gpu.yaml"),
        (2, {"ACCELERATE": "gpu", "PRECISION": "bf16"}, "gpu.yaml --mixed_precision bf16"),
        (4, {"ACCELERATE": "bf16", "GPUS": "3"}, "bf16.yaml --num_processes 3"),
    ],
)
def test_variables_choose_the_hardware_config(visible, variables, expected) -> None:
    assert line(visible, **variables) == f"--config_file {expected} --quiet -m train"


@pytest.mark.parametrize(
    ("visible", "variables", "kind", "says"),
    [
        (2, {"GPUS": "4"}, HostError, "GPUS=4, and 2 GPUs can be seen here → use GPUS=2"),
        (0, {"GPUS": "4"}, HostError, "GPUS=4, and no GPUs can be seen here → use CPUS=1"),
        (1, {"GPUS": "2"}, HostError, "1 GPU can be seen"),
        (1, {"GPUS": "two"}, UsageError, "GPUS=two is no number"),
        (0, {"CPUS": "0"}, UsageError, "CPUS=0 is no number"),
        (1, {"GPUS": "1", "CPUS": "1"}, UsageError, "both set"),
        (1, {"PRECISION": "fp8"}, UsageError, "PRECISION=fp8"),
        (0, {"PRECISION": "fp16"}, HostError, "FP16 needs a GPU"),
        (1, {"ACCELERATE": "multi_gpus"}, UsageError, "did you mean multi_gpu"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(visible, variables, kind, says) -> None:
    with pytest.raises(TrainError, match=says) as raised:
        launch.command(variables, WORDS, visible)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("configs/accelerate/*.yaml")), ids=lambda p: p.stem
)
def test_accelerate_takes_the_hardware_configs(path) -> None:
    """An unknown key would be an error of Accelerate's; an unquoted no would be a boolean."""
    loaded = load_config_from_file(str(path))
    assert loaded.mixed_precision == yaml.safe_load(path.read_text())["mixed_precision"]
    assert loaded.mixed_precision in ("no", "fp16", "bf16")


def test_evaluation_takes_all_gpus_whatever_the_lanes() -> None:
    words = launch.command({}, ["evaluate", "--run", "x"], 6)
    assert words[words.index("--num_processes") + 1] == "6"


def test_the_six_hardware_configs_are_there() -> None:
    names = {path.stem for path in ROOT.glob("configs/accelerate/*.yaml")}
    assert names == {"cpu", "multi_cpu", "gpu", "multi_gpu", "fp16", "bf16"}


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("0,2", 2), ("", 0), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3,4", 3)],
)
def test_gpus_are_those_that_the_driver_lists_and_the_environment_leaves(
    tmp_path, monkeypatch, visible, count
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\nfor n in 0 1 2; do echo "GPU $n: NVIDIA A100 (UUID: GPU-$n)"; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch.visible_gpus() == count


def test_a_machine_without_the_driver_s_tool_has_no_gpus(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert launch.visible_gpus() == 0


def start(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "train.launch", *words], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **variables}, check=False, timeout=120,
    )  # fmt: skip


def test_bad_input_ends_before_the_launcher_starts() -> None:
    done = start(*WORDS, "--optim.lrr", "1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown argument --optim.lrr; did you mean --optim.lr?")
    assert len(done.stderr.splitlines()) == 1


def test_the_trainer_s_exit_code_comes_back_through_the_launcher(tmp_path) -> None:
    """Accelerate's launcher turns each code into 1."""
    done = start(*WORDS, "--data.source", "folder", "--data.root", str(tmp_path / "none"))
    assert done.returncode == 3, done.stderr
    assert [ln for ln in done.stderr.splitlines() if ln] == [
        f"error: there is no directory {tmp_path / 'none'} → set --data.root to where the data is"
    ]


def test_a_process_that_lost_the_others_does_not_speak_for_them(tmp_path, monkeypatch) -> None:
    note = tmp_path / "note.json"
    monkeypatch.setenv(outcome.VARIABLE, str(note))
    outcome.begun()
    assert outcome.read(note) == {"begun": True}
    outcome.ended(6, "process 1 lost the others", bystander=True)
    assert outcome.read(note)["code"] == 6
    outcome.ended(4, "the disk is full")
    outcome.ended(6, "process 2 lost the others", bystander=True)
    assert outcome.read(note)["code"] == 4
    monkeypatch.setenv(outcome.VARIABLE, str(tmp_path / "none" / "note.json"))
    outcome.begun()  # nowhere to write: not the trainer's concern
