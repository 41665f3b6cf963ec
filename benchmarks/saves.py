"""How long a checkpoint holds a training up: written in the background, and waited for.

    python benchmarks/saves.py [--model wide_resnet50_2] [--steps 12]

Each row is a training of its own on one process, one after another: without a checkpoint on the
way, with one at every third step that is waited for, and with one in the background. Held up is how
long the loop stands still; the whole also has what the writing takes from the steps beside it. All
must end in the same hash.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERY = 3
ROWS = (
    ("none on the way", ["--checkpoint.every", "1000000"]),
    ("waited for", ["--checkpoint.every", str(EVERY), "--checkpoint.background", "false"]),
    ("in the background", ["--checkpoint.every", str(EVERY)]),
)
PROGRAM = """
import json, sys, time
from train import loop
from train.__main__ import main
from train.journal import Journal

save, held = Journal.save, []

def timed(journal):
    start = time.perf_counter()
    save(journal)
    held.append((journal.state.step, start, time.perf_counter()))

Journal.save = timed
update, begun = loop.update, []

def noted(*args):
    begun.append(time.perf_counter())
    return update(*args)

loop.update = noted
code = main(sys.argv[2:])
open(sys.argv[1], "w").write(json.dumps([begun, held]))
sys.exit(code)
"""


def main() -> None:
    """Train all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="wide_resnet50_2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--size", default="32")
    options = parser.parse_args()
    words = [
        "--config", "configs/digits.yaml", "--numerics", "native", "--model.name", options.model,
        "--data.size", options.size, "--batch_size", "16", "--lanes", "1", "--data.holdout", "0.01",
        "--max_steps", str(options.steps), "--log.report", "false", "--eval.every", "1000000",
        "--optim.momentum", "0.9", "--data.workers", "0",
    ]  # fmt: skip
    print(
        "| checkpoints | same hash | MB | ms held up a save | s from the first step to the last |"
    )
    print("|---|---|---|---|---|")
    first = None
    for kind, more in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            run, notes = Path(folder) / "run", Path(folder) / "notes"
            command = [sys.executable, "-c", PROGRAM, str(notes), "fit", *words, *more]
            done = subprocess.run(
                [*command, "--run", str(run)],
                cwd=ROOT,
                env={**os.environ, "DOCTOR": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(done.stdout + done.stderr)
            begun, held = json.loads(notes.read_text())
            result = json.loads((run / "result.json").read_text())
            first = first or result["weights_sha256"]
            latest = run / "checkpoints" / "latest"
            size = sum(file.stat().st_size for file in latest.iterdir()) / 1e6
            # The one at the end is waited for in any case.
            stalls = [1000 * (end - start) for step, start, end in held if step < options.steps]
            mean = f"{sum(stalls) / len(stalls):.0f}" if stalls else "-"
            same = "yes" if result["weights_sha256"] == first else "NO"
            print(
                f"| {kind} | {same} | {size:.0f} | {mean} | {begun[-1] - begun[0]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
