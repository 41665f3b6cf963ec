"""What `--verify X --on 3GB` says of micro-batches, beside what `tune` finds in as much memory.

    python benchmarks/elsewhere.py            # as root, on Linux: it makes a memory cgroup

Six models on pictures that are drawn for it. The two count alike but for what a process takes
before its first tensor: CUDA's context there, Python and torch here. The limit makes up for that.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from doctor.inside import elsewhere
from train.process.memory import CONTEXT, PROCESS
from train.tuning.search import ROOM

HOME = Path(__file__).resolve().parent.parent
# A name, the side of its pictures, and GB of the card: with each some dozens of pictures fit.
MODELS = (
    ("convnet", 96, 2),
    ("resnet18", 96, 2),
    ("resnet50", 96, 3),
    ("mobilenet_v3_small", 128, 2),
    ("vgg11", 64, 4),
    ("vit_b_16", 224, 5),
)


def main() -> None:
    print(f"{'model':20} {'side':>5} {'card':>6} {'--on':>6} {'tune':>6}  ratio")
    for name, side, size in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            config = _experiment(Path(folder), name, side)
            said = elsewhere.examine(config, f"{size}GB")
            words = {found.name: found.seen for found in said}["fits on it"]
            told = re.search(r"up to (\d+) fit", words)
            foretold = int(told.group(1)) if told else 0
            limit = (elsewhere.LEAVE * size * 2**30 - CONTEXT + PROCESS) / ROOM
            found = _tuned(Path(folder), config, int(limit))
            ratio = foretold / found if found else 0.0
            print(f"{name:20} {side:5} {size:4}GB {foretold:6} {found:6}  {ratio:.2f}", flush=True)


def _experiment(folder: Path, name: str, side: int) -> Path:
    numbers = np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / "data" / label).mkdir(parents=True)
        for number in range(256):
            pixels = numbers.integers(0, 255, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "data" / label / f"{number}.png")
    config = folder / "experiment.yaml"
    config.write_text(
        f"name: {name}\nbatch_size: 4096\nlanes: 8\nepochs: 1\nmodel: {{name: {name}}}\n"
        f"data: {{source: folder, root: {folder}/data, size: {side}}}\n"
    )
    return config


def _tuned(folder: Path, config: Path, limit: int) -> int:
    """The micro-batch that the tuner finds within so many bytes."""
    group = Path(f"/sys/fs/cgroup/memory/lockstep-{os.getpid()}")
    old = group.parent.exists()
    group = group if old else Path(f"/sys/fs/cgroup/lockstep-{os.getpid()}")
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        words = [
            sys.executable,
            "-m",
            "train.launch",
            "tune",
            "--what",
            "batch",
            "--config",
            config,
        ]
        shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words]
        environ = {**os.environ, "CPUS": "1", "PYTHONPATH": str(HOME)}
        done = subprocess.run(
            shell, cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        [report] = folder.glob("runs/*/tune-*/tune.json")
        return int(json.loads(report.read_text())["batch"]["largest"])
    except ValueError:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        return 0
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
