"""The same bits on CPUs of other makers and ages, as qemu-user emulates them.

What is chosen by the CPU's kind is emulated exactly: which code the libraries take. Silicon is not:
`rcpps` and `rsqrtps` give other bits on each make.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT

from train.numerics import variables
from train.record import comparison

pytestmark = [pytest.mark.portable, pytest.mark.timeout(3000)]

EMULATOR = "qemu-x86_64"
SHORT = "--config configs/digits.yaml --eval.every 2 --checkpoint.every 2 --log.every 1"
SMALL = "--batch_size 32 --lanes 2 --max_steps 3"
EXPERIMENTS = {
    "convnet SGD": f"{SHORT} --max_steps 4",
    "ResNet-18 AdamW": f"{SHORT} {SMALL} --model.name resnet18 --model.stem small"
    " --optim.name adamw --optim.lr 0.001",
    "MobileNet": f"{SHORT} {SMALL} --model.name mobilenet_v3_small --data.size 32"
    " --model.channels_last true --optim.lr 0.02",
    "transformer with dropout": f"{SHORT} {SMALL} --model.name transformer --optim.name adamw"
    " --optim.lr 0.001 --optim.clip 1",
    "fine-tuned": f"{SHORT} --max_steps 4 --model.weights WEIGHTS --optim.name adamw"
    " --optim.lr 0.0001 --augment.cutout 2",
}
QUICK = ("convnet SGD", "ResNet-18 AdamW")
CPUS = (
    "Haswell",
    "Haswell,l3-cache=off",
    "Skylake-Client",
    "EPYC-Rome",
    "EPYC-Milan",
    "EPYC-Milan,l3-cache=off,host-cache-info=on",
)
EMULATED = "6.0.0-emulated"
"""What an emulated process takes for the kernel's release; one that left the emulator does not."""


@dataclass(frozen=True)
class Trained:
    record: dict
    result: dict
    trace: str


def train(folder: Path, names: Sequence[str], cpu: str | None) -> dict[str, Trained]:
    """Train experiments one after another in a process, on this CPU or on an emulated one."""
    words, runs = [], {name: folder / f"{name}-{cpu}".replace(" ", "-") for name in names}
    for name, run in runs.items():
        said = EXPERIMENTS[name].replace("WEIGHTS", str(folder / "weights.safetensors")).split()
        words.append(["fit", *said, "--run", str(run)])
    command = [sys.executable, "tests/portable/trainer.py", json.dumps(words)]
    if cpu is not None:
        assert shutil.which(EMULATOR), "Debian and Ubuntu have it: apt-get install qemu-user"
        command = [EMULATOR, "-r", EMULATED, "-cpu", cpu, *command]
    # With the hash seed set, nothing has to start Python again: that would leave the emulator.
    environ = {**os.environ, **variables.HELD, **variables.STARTED, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for name, run in runs.items():
        record, result = (
            json.loads((run / f"{file}.json").read_text()) for file in ("run", "result")
        )
        assert (EMULATED in record["hardware"]["system"]) == (cpu is not None)
        found[name] = Trained(record, result, (run / "trace.csv").read_text())
    return found


def weights(folder: Path) -> None:
    """Those of a short training, to go on from."""
    run = folder / "weights"
    words = f"{SHORT} --max_steps 6 --seed 3 --run {run}".split()
    subprocess.run(
        [sys.executable, "-m", "train", "fit", *words], cwd=ROOT, check=True, capture_output=True
    )
    shutil.copy(run / "checkpoints/latest/model.safetensors", folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("cpu", "names"),
    [
        *(pytest.param(cpu, QUICK, id=f"quick-{cpu}") for cpu in ("Haswell", "EPYC-Milan")),
        *(pytest.param(cpu, tuple(EXPERIMENTS), id=f"all-{cpu}") for cpu in CPUS),
    ],
)
def test_the_same_bits(cpu, names, tmp_path) -> None:
    if "fine-tuned" in names:
        weights(tmp_path)
    here, there = train(tmp_path, names, None), train(tmp_path, names, cpu)
    for name in names:
        ours, theirs = here[name], there[name]
        same = theirs.result["weights_sha256"] == ours.result["weights_sha256"]
        print(f"{name} on {cpu}: {theirs.result['weights_sha256'][:12]} {same}")
    for name in names:
        ours, theirs = here[name], there[name]
        assert comparison.differences(ours.record, theirs.record) == []
        assert theirs.trace == ours.trace
        for key in ("weights_sha256", "metrics", "best"):
            assert theirs.result[key] == ours.result[key]
