"""Memory of loader processes after one epoch and after twenty, on 100,000 small files.

    python benchmarks/loader_memory.py [--files 100000] [--epochs 20]

A list of names would be copied into each loader process, object by object, as it is read: with
PyTorch's usual data sets that is what makes memory grow from epoch to epoch. Prints each process's
own memory (USS) and its share of what is common (PSS), in MiB.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil
import torch
from PIL import Image

from train.config import Config, Data
from train.data import lane_blocks, load


def make(root: Path, count: int) -> None:
    """Small pictures: a hundred, each under many names."""
    for split, number in (("train", count), ("validation", 200)):
        for n in range(number):
            path = root / split / "ab"[n % 2] / f"picture-{n:07}.png"
            if n < 100:
                path.parent.mkdir(parents=True, exist_ok=True)
                random = np.random.default_rng(n)
                Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
            else:
                os.link(root / split / "ab"[n % 2] / f"picture-{n % 100:07}.png", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.files)
        data = Data(source="folder", root=folder, workers=2, cache=0, cache_dir=f"{folder}/cache")
        config = Config(batch_size=1000, lanes=1, data=data)
        train = load(data).train
        total = options.epochs * len(train)
        blocks = lane_blocks(
            train, config, range(1), torch.device("cpu"), first_step=0, total=total
        )
        for step, _ in enumerate(blocks, 1):
            epoch, rest = divmod(1000 * step, len(train))
            if rest == 0 and epoch in (1, 2, 5, 10, options.epochs):
                used = [p.memory_full_info() for p in psutil.Process().children()]
                print(
                    f"epoch {epoch:>3}:",
                    ", ".join(f"own {u.uss >> 20}, shared in part {u.pss >> 20}" for u in used),
                    flush=True,
                )


if __name__ == "__main__":
    main()
