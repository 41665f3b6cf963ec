"""From make's variables to a command that starts trainers, and back to an exit code."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from conftest import ROOT

from host import errors, hardware, launcher, plan
from host.errors import CheckpointError, HostError, LockstepError, LostPeers, UsageError
from train.process import outcome, supervisor

_IDLE = ("ACCELERATE_DYNAMO_", "KMP_", "TORCHINDUCTOR_CACHE_DIR")
WORDS = ["fit", "--config", "configs/digits.yaml"]


def line(visible: int, lanes: int = 8, **variables: str) -> str:
    words = supervisor.command(plan.make(variables, visible, lanes), "train", WORDS)
    assert words[-len(WORDS) :] == WORDS
    *said, flag, module = words[: -len(WORDS)]
    assert (flag, module) == ("-m", "train")
    if said[0] == "env":
        return shlex.join(word.removeprefix("ACCELERATE_") for word in said[1:-1])
    assert said[1:3] == ["-m", "train.accelerated"]
    return shlex.join(said[3:-1]).replace("--config_file configs/accelerate/", "")


@pytest.mark.parametrize(
    ("visible", "variables", "expected"),
    [
        (0, {}, "USE_CPU=true MIXED_PRECISION=no"),
        (4, {"CPUS": "1"}, "USE_CPU=true MIXED_PRECISION=no"),
        (0, {"CPUS": "4"}, "multi_cpu.yaml --num_processes 4"),
        (0, {"PRECISION": "bf16"}, "USE_CPU=true MIXED_PRECISION=bf16"),
        (2, {"GPUS": "0"}, "USE_CPU=true MIXED_PRECISION=no"),
        (1, {}, "USE_CPU=false MIXED_PRECISION=no"),
        (4, {}, "multi_gpu.yaml --num_processes 4"),
        (4, {"GPUS": "all"}, "multi_gpu.yaml --num_processes 4"),
        (4, {"GPUS": "2"}, "multi_gpu.yaml --num_processes 2"),
        (4, {"GPUS": "4", "PRECISION": "fp16"}, "fp16.yaml --num_processes 4"),
        (4, {"GPUS": "1", "PRECISION": "bf16"}, "bf16.yaml --num_processes 1"),
        (6, {}, "multi_gpu.yaml --num_processes 4"),
        (16, {"PRECISION": "bf16"}, "bf16.yaml --num_processes 8"),
        (3, {"GPUS": "3"}, "multi_gpu.yaml --num_processes 3"),
        (4, {"ACCELERATE": "gpu"}, "USE_CPU=false MIXED_PRECISION=no"),
        (2, {"ACCELERATE": "gpu", "PRECISION": "bf16"}, "USE_CPU=false MIXED_PRECISION=bf16"),
        (4, {"ACCELERATE": "bf16", "GPUS": "3"}, "bf16.yaml --num_processes 3"),
    ],
)
def test_variables_choose_the_hardware_config(visible, variables, expected) -> None:
    assert line(visible, **variables) == expected


@pytest.mark.parametrize(
    ("more", "single"),
    [
        ("", True),
        ("downcast_bf16: 'no'", False),
        ("dynamo_config:\n  dynamo_backend: INDUCTOR", False),
        ("gpu_ids: '1'", False),
        ("num_machines: 2", False),
    ],
)
def test_a_hardware_config_that_says_more_is_accelerate_s(
    tmp_path, monkeypatch, more, single
) -> None:
    monkeypatch.setattr(hardware, "CONFIGS", tmp_path)
    text = (ROOT / "configs/accelerate/gpu.yaml").read_text()
    (tmp_path / "gpu.yaml").write_text(f"{text}{more}\n")
    for variables in ({}, {"ACCELERATE": "gpu"}):
        assert plan.make(variables, 1).single is single


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variables"), [("cpu", {}), ("cpu", {"PRECISION": "bf16"})])
def test_a_single_process_is_told_what_accelerate_would_tell_it(name, variables, tmp_path) -> None:
    """But for its compiler and that one's cache, which nobody asked for, and Intel's OpenMP."""
    planned = plan.make(variables, 0)
    show = tmp_path / "show.py"
    show.write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    words = [str(Path(sys.executable).parent / "accelerate"), "launch", *planned.words, str(show)]
    environ = {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    new = {n: v.lower() for n, v in told.items() if n not in environ and n != "LC_CTYPE"}
    idle = {n: v for n, v in new.items() if n.startswith(_IDLE)}
    assert {v for n, v in idle.items() if "DYNAMO" in n} <= {"no", "default", "false"}
    assert {n: v for n, v in new.items() if n not in idle} == planned.variables


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
    with pytest.raises(LockstepError, match=says) as raised:
        plan.make(variables, visible)
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
    planned = plan.make({}, 6)
    assert planned.processes == 6
    assert planned.words[planned.words.index("--num_processes") + 1] == "6"


def test_the_hardware_configs_are_there() -> None:
    names = {path.stem for path in ROOT.glob("configs/accelerate/*.yaml")}
    assert names == {"cpu", "multi_cpu", "gpu", "multi_gpu", "multi_node", "fp16", "bf16", "fsdp"}


def start(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "train.launch", *words], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **variables}, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_what_is_printed_trains_the_same_when_it_is_pasted(tmp_path) -> None:
    done = start(*WORDS, "--max_steps", "1", "--run", str(tmp_path / "run"), CPUS="2", SHARES="5,3")
    assert done.stdout.startswith("env SHARES=5,3 ")
    assert done.returncode == 0, done.stderr
    assert "batch 128 = (5+3) × 16" in done.stdout
    assert "SHARES" not in start(*WORDS, "--run", "/dev/null/run", CPUS="2").stdout


@pytest.mark.slow
def test_bad_input_ends_before_the_launcher_starts() -> None:
    done = start(*WORDS, "--optim.lrr", "1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown argument --optim.lrr; did you mean --optim.lr?")
    assert len(done.stderr.splitlines()) == 1
    done = start(*WORDS, CPUS="40")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 40 processes cannot share 8 lanes → use at most 8 ")
    assert len(done.stderr.splitlines()) == 1
    done = start(*WORDS, CPUS="2", SHARES="5,2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: SHARES=5,2 does not share 8 lanes among 2 processes → give each a number of them,"
        " such as SHARES=4,4\n"
    )
    done = start(*WORDS, CPUS="3", STAGES="2")
    assert done.returncode == 2
    assert "STAGES=2 with 3 processes: 2 stages are 2 processes, or twice as many" in done.stderr
    done = start("sweep", "--config", "configs/digits.yaml", "--seeds", "2", STAGES="2")
    assert "STAGES=2 is for make train: sweep trains whole models" in done.stderr
    done = start("sweep", "--config", "configs/digits.yaml", "--seeds", "2", SHARES="5,3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "SHARES=5,3 is for make train: sweep gives all processes as many lanes" in done.stderr
    done = start(*WORDS, CPUS="2", ACCELERATE="fsdp", SHARES="5,3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "where weights are sharded all processes have as many lanes" in done.stderr
    for told, says in (
        ({"CPUS": "1"}, "SHARES=auto with 1 process, which runs all lanes"),
        (
            {"CPUS": "2", "ACCELERATE": "fsdp"},
            "SHARES=auto: where weights are sharded the processes",
        ),
        ({"CPUS": "2", "STAGES": "2"}, "SHARES=auto with STAGES=2: copies of the model have as"),
    ):
        done = start(*WORDS, SHARES="auto", **told)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    done = start(*WORDS, CPUS="3", ACCELERATE="fsdp")
    assert (done.returncode, done.stdout) == (2, "")
    assert "3 processes cannot share 8 lanes evenly" in done.stderr


@pytest.mark.slow
def test_the_trainer_s_exit_code_comes_back_through_the_launcher(tmp_path) -> None:
    """Accelerate's launcher turns each code into 1."""
    done = start(*WORDS, "--data.source", "folder", "--data.root", str(tmp_path / "none"))
    assert done.returncode == 3, done.stderr
    assert [ln for ln in done.stderr.splitlines() if ln] == [
        f"error: there is no directory {tmp_path / 'none'} → set --data.root to where the data is"
    ]


@pytest.mark.slow
def test_an_error_of_several_is_one_line(tmp_path) -> None:
    done = start(*WORDS, "--data.source", "folder", "--data.root", str(tmp_path), CPUS="2")
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")


_ENDS = """
import os
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    def forward(self, images):
        begun = list(Path(os.environ["RUN"]).glob("checkpoints/step-*"))
        if os.environ.get("RANK") == "1" and begun:
            {}
        return super().forward(images)

def build(classes, shape):
    return Net(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("os.kill(os.getpid(), 11)", "signal 11 (Segmentation fault)"),
        ("os._exit(9)", "code 9"),
        ("raise ValueError('mine')", "code 1"),
    ],
)
def test_a_trainer_that_ends_without_a_line_of_ours_is_named(tmp_path, does, how) -> None:
    (tmp_path / "mine.py").write_text(_ENDS.format(does))
    run = tmp_path / "run"
    own = ["--model.name", "mine:build", "--numerics", "native", "--checkpoint.every", "1"]
    path = f"{tmp_path}:{ROOT}"
    done = start(*WORDS, *own, "--run", str(run), CPUS="2", RUN=str(run), PYTHONPATH=path)
    assert done.returncode == 6, done.stderr
    *before, named, last = done.stderr.splitlines()
    assert named == f"process 1 ended with {how}"
    assert last.startswith("error: process 0 lost the others at step ")
    assert "ChildFailedError" not in done.stderr
    traced = [line for line in before if "ValueError: mine" in line]
    assert len(traced) == ("raise" in does)


def test_a_process_that_lost_the_others_does_not_speak_for_them(tmp_path, monkeypatch) -> None:
    note = tmp_path / "note.json"
    monkeypatch.setenv(outcome.VARIABLE, str(note))
    assert not outcome.read(note).begun
    outcome.begun()
    assert outcome.read(note) == outcome.Outcome(True, None)
    outcome.ended(LostPeers("process 1 lost the others", "see them"))
    assert outcome.read(note).error.code == 6
    assert not outcome.read(note).known
    outcome.ended(CheckpointError("the disk is full → or nearly", "make room"))
    outcome.ended(LostPeers("process 2 lost the others", "see them"))
    said = outcome.read(note).error
    assert (said.code, said.problem, said.fix) == (4, "the disk is full → or nearly", "make room")
    monkeypatch.setenv(outcome.VARIABLE, str(tmp_path / "none" / "note.json"))
    outcome.begun()  # nowhere to write: not the trainer's concern


@pytest.mark.parametrize("kind", errors._KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_error_in_another_process(kind) -> None:
    there = errors.from_fields(kind("a → b", "c → d").fields())
    assert (type(there), there.problem, there.fix) == (kind, "a → b", "c → d")
    assert errors.of(kind.code).code == kind.code
    assert errors.of(kind.code) not in (errors.OutOfMemory, errors.LostPeers)


def test_codes_of_others_are_the_environments() -> None:
    assert errors.of(1) is errors.of(139) is HostError


@pytest.mark.parametrize(
    ("told", "there", "refused"),
    [
        ({"PRECISION": "bf16"}, {}, "PRECISION=bf16"),
        ({"PRECISION": "bf16"}, {"ACCELERATE_MIXED_PRECISION": "bf16"}, None),
        ({"PRECISION": "no"}, {}, None),
        ({"CPUS": "2"}, {"LOCAL_WORLD_SIZE": "2"}, None),
        ({"GPUS": "4"}, {}, "GPUS=4"),
        ({"ACCELERATE": "fsdp"}, {}, "ACCELERATE=fsdp"),
        ({"CPUS": ""}, {}, None),
        ({"GPUS": "0"}, {}, None),
        ({"PRECISION": "bf16"}, {"ACCELERATE_MIXED_PRECISION": "BF16"}, None),
    ],
)
def test_what_is_said_to_make_is_not_unheard_elsewhere(monkeypatch, told, there, refused) -> None:
    """`PRECISION=bf16 torchrun …` would train in FP32, and say so nowhere."""
    for name in ("PRECISION", "ACCELERATE_MIXED_PRECISION", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**told, **there}.items():
        monkeypatch.setenv(name, value)
    if refused is None:
        launcher.check_unheard(told)
        return
    with pytest.raises(UsageError, match=f"{refused} is for make, and did not start this process"):
        launcher.check_unheard(told)
