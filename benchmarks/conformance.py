"""Which trainers see each sample once, and end in the same bits, when they are killed and resumed?

    make conformance        (installs requirements/peers.txt into .venv-peers, takes five minutes)

The same experiment for each: 54 pictures, global batch 8, two epochs, a net with batch norm and
dropout, a checkpoint every 3 steps by the trainer's own means, SIGKILL after step 5, and the
trainer's own way of resuming. Each process writes down the samples it computes on. A step that
was done again after the resume counts once, as its last attempt did it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SAMPLES, EPOCHS, KILL_AT = 54, 2, 5
TRAINERS = {
    "lockstep_": "Lockstep, this commit",
    "accelerate_": f"Accelerate {version('accelerate')}, plain",
    "hf_trainer": f"HF Trainer {version('transformers')}",
    "lightning_": f"Lightning {version('lightning')}",
}
# Processes of each attempt: the last one ends by itself, those before it are killed.
SCHEDULES = {"1": [1], "1 again": [1], "2": [2], "1, 1": [1, 1], "2, 2": [2, 2], "2, 1": [2, 1]}


def pictures(home: Path) -> None:
    """54 noisy pictures of two classes to train on, and a few more."""
    random = np.random.default_rng(0)
    for split, count in (("train", SAMPLES // 2), ("validation", 4)):
        for name, value in (("dark", 100), ("light", 150)):
            (home / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                noise = random.integers(-60, 60, (8, 8))
                image = Image.fromarray((value + noise).astype(np.uint8))
                image.save(home / "data" / split / name / f"{number:02}.png")


def launch(trainer: str, home: Path, attempt: int, world: int, *, kill: bool) -> None:
    """One attempt, under torchrun as any of them would be."""
    environ = {
        **os.environ, "PYTHONPATH": str(ROOT), "CONFORMANCE_HOME": str(home),
        "CONFORMANCE_ATTEMPT": str(attempt), "CONFORMANCE_KILL_AT": str(KILL_AT if kill else 0),
        "CUDA_VISIBLE_DEVICES": "-1", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    script = str(ROOT / "benchmarks/trainers" / f"{trainer}.py")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    words = [sys.executable, script] if world == 1 else [*words, str(world), script]
    done = subprocess.run(
        words, env=environ, cwd=home, capture_output=True, text=True, timeout=300, check=False
    )
    if (done.returncode == 0) == kill:
        sys.exit(f"{trainer} on {world}: code {done.returncode}\n{done.stderr[-2000:]}")


def ledger(home: Path, attempts: int) -> Counter[int]:
    """How often each sample counts."""
    steps: dict[int, tuple[int, list[int]]] = {}
    for attempt in range(attempts):
        for path in home.glob(f"{attempt}.*.ledger"):
            for line in path.read_text().splitlines():
                step, *numbers = map(int, line.split())
                if steps.get(step, (-1,))[0] != attempt:
                    steps[step] = (attempt, [])
                steps[step][1].extend(numbers)
    return Counter(number for _, numbers in steps.values() for number in numbers)


def main() -> None:
    """Print the table."""
    print(
        "| trainer | 1 process | 2 | 1, killed, 1 | 2, killed, 2 | 2, killed, 1"
        " | same bits: again | killed, on 1 | killed, on 2 | 1 = 2 processes | 2, then 1 |"
    )
    print("|---" * 11 + "|")
    for trainer, title in TRAINERS.items():
        hashes, cells = {}, []
        for name, worlds in SCHEDULES.items():
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                pictures(home)
                for attempt, world in enumerate(worlds):
                    launch(trainer, home, attempt, world, kill=attempt + 1 < len(worlds))
                counts = ledger(home, len(worlds))
                hashes[name] = (home / "hash").read_text()
                shutil.rmtree(home / "data")
            repeated = sum(max(0, counts[n] - EPOCHS) for n in range(SAMPLES))
            lost = sum(max(0, EPOCHS - counts[n]) for n in range(SAMPLES))
            if name != "1 again":
                cells.append("exact" if not (repeated or lost) else f"+{repeated} −{lost}")
        pairs = [("1", "1 again"), ("1", "1, 1"), ("2", "2, 2"), ("1", "2"), ("2", "2, 1")]
        cells += ["yes" if hashes[one] == hashes[other] else "no" for one, other in pairs]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
