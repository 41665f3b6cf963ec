"""What is trained on other CPUs: five experiments, one after another in a process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

from train.numerics import variables
from train.record import comparison

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
WHOLE = {"digits": "--config configs/digits.yaml"}
QUICK = ("convnet SGD", "ResNet-18 AdamW")


@dataclass(frozen=True)
class Trained:
    """What a run has written."""

    record: dict
    result: dict
    trace: str


def train(
    folder: Path,
    names: Sequence[str],
    before: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    numerics: str = "portable",
) -> dict[str, Trained]:
    """Train experiments one after another in a process, after the words `before`."""
    folder.mkdir(exist_ok=True)
    file = weights(folder) if "fine-tuned" in names else None
    words, runs = [], _runs(folder, names)
    for name, run in runs.items():
        said = {**EXPERIMENTS, **WHOLE}[name].replace("WEIGHTS", str(file))
        words.append(["fit", *said.split(), "--numerics", numerics, "--run", str(run)])
    command = [*before, sys.executable, "tests/portable/trainer.py", json.dumps(words)]
    # With the hash seed set, nothing has to start Python again: that would leave an emulator.
    held = {**variables.HELD, **variables.STARTED}
    bare = {name: value for name, value in os.environ.items() if name not in held}
    every = {**bare, **(held if numerics == "portable" else variables.STARTED), **(environ or {})}
    every["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=ROOT, env=every, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return read(folder, names)


def read(folder: Path, names: Sequence[str]) -> dict[str, Trained]:
    """What `train` has left in a folder."""
    return {name: _read(run) for name, run in _runs(folder, names).items()}


def _runs(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    return {name: folder / name.replace(" ", "-") for name in names}


def check_equal(here: Mapping[str, Trained], there: Mapping[str, Trained], cpu: str) -> None:
    """See that all that was recorded of both is the same, and print it."""
    for name, theirs in there.items():
        same = theirs.result["weights_sha256"] == here[name].result["weights_sha256"]
        print(f"{name} on {cpu}: {theirs.result['weights_sha256'][:12]} {same}")
    for name, theirs in there.items():
        ours = here[name]
        assert comparison.differences(ours.record, theirs.record) == []
        assert theirs.trace == ours.trace
        for key in ("weights_sha256", "metrics", "best"):
            assert theirs.result[key] == ours.result[key]


def _read(run: Path) -> Trained:
    record, result = (json.loads((run / f"{file}.json").read_text()) for file in ("run", "result"))
    return Trained(record, result, (run / "trace.csv").read_text())


def weights(folder: Path) -> Path:
    """Those of a short training, to go on from."""
    run = folder / "weights"
    words = f"{SHORT} --max_steps 6 --seed 3 --run {run}".split()
    subprocess.run(
        [sys.executable, "-m", "train", "fit", *words], cwd=ROOT, check=True, capture_output=True
    )
    return run / "checkpoints/latest/model.safetensors"
