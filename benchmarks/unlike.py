"""Two processes of which one has half a core: what a step takes with even and with uneven shares.

    python benchmarks/unlike.py [--steps 24]

Each row is a training of its own on the CPU, one thread a process, one after another; process 1 is
slowed down by a quota of its cgroup, which takes root. All must end in the same hash. The first
slowed row shows which shares the run itself proposes; the last one takes them by itself at its
checkpoints, and its last steps count. Steps are timed by the run's own figures.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ((False, ""), (True, ""), (True, "5,3"), (True, "6,2"), (True, "auto"))
_V1 = Path("/sys/fs/cgroup/cpu")


@contextmanager
def half_a_core() -> Iterator[Path]:
    """A cgroup whose processes have half a core."""
    group = (_V1 if _V1.is_dir() else _V1.parent) / f"unlike-{os.getpid()}"
    group.mkdir()
    try:
        if _V1.is_dir():
            (group / "cpu.cfs_period_us").write_text("20000")
            (group / "cpu.cfs_quota_us").write_text("10000")
        else:
            (group / "cpu.max").write_text("10000 20000")
        yield group
    finally:
        group.rmdir()


def trained(run: Path, words: list[str], shares: str, slow: Path | None) -> str:
    """Train on two processes; returns what they said."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    children = []
    for rank in (0, 1):
        environ = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", "SHARES": shares,
        }  # fmt: skip
        command = [sys.executable, "-m", "train", "fit", *words, "--run", str(run)]
        children.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    if slow is not None:
        (slow / "cgroup.procs").write_text(str(children[1].pid))
    said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        sys.exit("\n".join(said))
    return "\n".join(said)


def main() -> None:
    """Train all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    words = [
        "--config", "configs/digits.yaml", "--numerics", "native", "--model.name", "resnet18",
        "--model.stem", "small", "--data.size", "32", "--batch_size", "64", "--lanes", "8",
        "--max_steps", str(options.steps), "--log.every", "1", "--log.report", "false",
        "--optim.warmup", "4", "--eval.every", "1000000", "--checkpoint.every", "8",
    ]  # fmt: skip
    first = None
    print("| process 1 | shares | same hash | ms a step | proposed |\n|---|---|---|---|---|")
    for slowed, shares in ROWS:
        with tempfile.TemporaryDirectory() as folder, half_a_core() as group:
            run = Path(folder) / "run"
            said = trained(run, words, shares, group if slowed else None)
            lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            steps = [line["step_seconds"] for line in lines if "step_seconds" in line]
            steps = steps[-1:] if shares == "auto" else steps
            digest = json.loads((run / "result.json").read_text())["weights_sha256"]
        first = first or digest
        found = re.search(r"SHARES=[\d,]+", said) or re.search(r"lanes .* from", said)
        print(
            f"| {'half a core' if slowed else 'a core'} | {shares or 'even'}"
            f" | {'yes' if digest == first else 'NO'} | {1000 * statistics.median(steps):.0f}"
            f" | {found[0] if found else '-'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
