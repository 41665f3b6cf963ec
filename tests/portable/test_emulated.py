"""The same bits on CPUs of other makers and ages, as qemu-user emulates them.

What is chosen by the CPU's kind is emulated exactly: which code the libraries take. Silicon is not:
`rcpps` and `rsqrtps` give other bits on each make, so a test looks that none of them is executed.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

from train.numerics import variables
from train.record import provenance

pytestmark = [pytest.mark.portable, pytest.mark.timeout(1500)]

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
CPUS = (
    "Haswell",
    "Haswell,l3-cache=off",
    "Skylake-Client",
    "EPYC-Rome",
    "EPYC-Milan",
    "EPYC-Milan,l3-cache=off,host-cache-info=on",
)
EMULATED = "0-emulated"
"""What an emulated process takes for the kernel's release; one that left the emulator does not."""


@dataclass(frozen=True)
class Trained:
    record: dict
    result: dict
    trace: str


def train(folder: Path, name: str, cpu: str | None) -> Trained:
    """Train an experiment, on this CPU or on an emulated one."""
    words = [sys.executable, "tests/portable/trainer.py", "fit", *EXPERIMENTS[name].split()]
    if "WEIGHTS" in words:
        words[words.index("WEIGHTS")] = str(weights(folder.parent))
    if cpu is not None:
        assert shutil.which(EMULATOR), "Debian and Ubuntu have it: apt-get install qemu-user"
        words = [EMULATOR, "-r", EMULATED, "-cpu", cpu, *words]
    run = folder / f"{name}-{cpu}".replace(" ", "-")
    # With the hash seed set, nothing has to start Python again: that would leave the emulator.
    environ = {**os.environ, **variables.HELD, **variables.STARTED, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*words, "--run", str(run)],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((run / "run.json").read_text())
    assert (EMULATED in record["hardware"]["system"]) == (cpu is not None)
    result = json.loads((run / "result.json").read_text())
    return Trained(record, result, (run / "trace.csv").read_text())


@cache
def weights(folder: Path) -> Path:
    """Those of a short training, to go on from."""
    run = folder / "weights"
    words = f"{SHORT} --max_steps 6 --seed 3 --run {run}".split()
    subprocess.run(
        [sys.executable, "-m", "train", "fit", *words], cwd=ROOT, check=True, capture_output=True
    )
    return run / "checkpoints/latest/model.safetensors"


@cache
def here(folder: Path, name: str) -> Trained:
    """The same on this CPU."""
    return train(folder, name, None)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("cpu", CPUS)
def test_the_same_bits(name, cpu, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    ours, theirs = here(tmp_path_factory.getbasetemp(), name), train(folder, name, cpu)
    assert provenance.differences(ours.record, theirs.record) == []
    assert theirs.trace == ours.trace
    for key in ("weights_sha256", "metrics", "best"):
        assert theirs.result[key] == ours.result[key]
    print(f"{name} on {cpu}: {theirs.result['weights_sha256']}")
