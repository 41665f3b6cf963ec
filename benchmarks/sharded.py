"""What sharded weights and stages cost and save: hash, memory of a process, time a step, on CPUs.

    python benchmarks/sharded.py [--model vit_b_16] [--steps 6] [--size 224]

Each row is a training of its own, one after another: whole on 1 process, its lanes on 2 and 4, and
sharded on 2 and 4; cut into 2 and 4 stages, and two copies into two; with activations computed
again as well; and lanes in uneven shares.
PRECISION=bf16 in front trains all in that. Memory is the most that a process was
found to hold (resident), in two looks a second from the first step on: at the start each has the
whole model.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
FSDP = {"ACCELERATE": "fsdp"}
AGAIN = ["--model.activation_checkpointing", "true"]
ROWS: tuple[tuple[str, int, dict[str, str], list[str]], ...] = (
    ("whole", 1, {}, []),
    ("whole, activations again", 1, {}, AGAIN),
    ("lanes, 3 and 1", 2, {"SHARES": "3,1"}, []),
    ("lanes, 2, 1 and 1", 3, {}, []),
    *(
        row
        for n in (2, 4)
        for row in (
            ("lanes", n, {}, []),
            ("sharded", n, FSDP, []),
            ("sharded, fast", n, FSDP, ["--reproducibility", "fast"]),
            ("sharded, activations again", n, FSDP, AGAIN),
            ("stages", n, {"STAGES": str(n)}, []),
        )
    ),
    ("two copies in two stages", 4, {"STAGES": "2"}, []),
)


def trained(run: Path, words: list[str], environ: dict[str, str]) -> tuple[dict[str, object], int]:
    """A training's result, and the most bytes that a process of it held after the first step."""
    command = [sys.executable, "-m", "train.launch", "fit", *words, "--run", str(run)]
    most = 0
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        while child.poll() is None:
            time.sleep(0.5)
            if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size:
                for process in psutil.Process(child.pid).children(recursive=True):
                    try:
                        most = max(most, process.memory_info().rss)
                    except psutil.Error:
                        continue
        assert child.stderr is not None
        if child.returncode:
            sys.exit(child.stderr.read())
    return json.loads((run / "result.json").read_text()), most


def losses(run: Path) -> list[float]:
    """The training loss of each step."""
    with (run / "trace.csv").open() as file:
        return [float.fromhex(row["loss"]) for row in csv.DictReader(file)]


def main() -> None:
    """Train all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vit_b_16")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--size", default="224")
    options = parser.parse_args()
    words = [
        "--config", "configs/digits.yaml", "--numerics", "native", "--model.name", options.model,
        "--data.size", options.size, "--batch_size", "8", "--lanes", "4", "--data.holdout", "0.01",
        "--max_steps", str(options.steps), "--log.every", "1", "--log.report", "false",
        "--optim.momentum", "0.9", "--checkpoint.every", "1000000",
    ]  # fmt: skip
    first: tuple[object, list[float]] | None = None
    print(f"{options.model}, batch 8 in 4 lanes\n")
    print("| | processes | same hash | largest difference of a loss | GiB a process | ms a step |")
    print("|---|---|---|---|---|---|")
    for kind, count, more, again in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            environ = {**os.environ, "CPUS": str(count), "DOCTOR": "0", **more}
            run = Path(folder) / "run"
            result, most = trained(run, [*words, *again], environ)
            own = result["weights_sha256"], losses(run)
        first = first or own
        same = "yes" if own[0] == first[0] else "NO"
        apart = max(abs(a - b) for a, b in zip(own[1], first[1], strict=True))
        each = 1000 * float(str(result["seconds"])) / options.steps
        figures = f"{apart:.2g} | {most / 2**30:.2f} | {each:.0f}"
        print(f"| {kind} | {count} | {same} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
