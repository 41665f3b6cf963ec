"""The GPU proof is at hand when a GPU is: what it runs without one must run."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


def test_what_needs_no_gpu_runs_without_one() -> None:
    words = ["benchmarks/gpu.py", "--dry", "--only", "machine,steps,health"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| convnet, 8², batch 64, 2 lanes | lockstep × " in done.stdout
