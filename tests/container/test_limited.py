"""Real limits of a container: the doctor finds each, and the tuner lives with them."""

import json
import re
import subprocess

import pytest
from conftest import slow_pictures

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

IMAGE = "lockstep:cuda13"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "run", "--rm", *words], capture_output=True, text=True, check=False
    )


def test_the_doctor_finds_each_limit(checkout) -> None:
    code = [
        "-v",
        f"{checkout.path}/train:/lockstep/train:ro",
        "-v",
        f"{checkout.path}/doctor:/lockstep/doctor:ro",
    ]
    limits = ["--cpus", "1", "--memory", "2g", "--shm-size", "64m"]
    done = run(*limits, *code, IMAGE, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)}
    for name, seen in (("CPUs", "1 of "), ("memory", "2.0 of "), ("shared memory", "0.06 GiB")):
        assert (found[name]["status"], found[name]["seen"][: len(seen)]) == ("warn", seen)
        assert found[name]["fix"]
    assert found["collectives"]["status"] == "ok"


def test_make_doctor_looks_at_the_host_and_into_the_image(checkout) -> None:
    done = checkout.run("make", "doctor", "ARGS=--verify configs/digits.yaml", CPUS="2")
    assert done.code == 0, done.said
    for row in (
        r"ok +engine +Docker",
        r"ok +torch +\d",
        r"ok +collectives +2 processes",
        r"ok +lanes +batch 128 = 2 × 4",
    ):
        assert re.search(row, done.said), done.said


@pytest.mark.parametrize(("processes", "memory"), [(1, "1200m"), (2, "1900m")])
def test_the_tuner_outlives_what_the_kernel_kills(
    checkout, tmp_path_factory, processes, memory
) -> None:
    """And what it found then trains a whole epoch, under the same limit."""
    data = checkout.path.parent / f"pictures-{processes}"
    slow_pictures(data, count=64, side=160)
    common = [
        "--memory", memory, "--memory-swap", memory, "-e", f"CPUS={processes}", "--user", f"{checkout.uid}",
        "-v", f"{checkout.path}/train:/lockstep/train:ro", "-v", f"{data}:/lockstep/data:ro",
        "-v", f"{checkout.path}/runs:/lockstep/runs", IMAGE,
    ]  # fmt: skip
    knobs = [
        "--data.source",
        "folder",
        "--data.root",
        "data",
        "--data.size",
        "160",
        "--model.name",
        "convnet",
    ]
    name = f"limited-{processes}"
    done = run(
        *common,
        "tune",
        "--what",
        "batch",
        "--name",
        name,
        "--batch_size",
        "32",
        "--lanes",
        "2",
        *knobs,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = (checkout.path / "runs" / name).glob("tune-*/tune.json")
    found = json.loads(report.read_text())["batch"]
    assert found["answers"] == [found["largest"]] * processes
    assert found["limit"] is not None
    lanes = 2
    epoch = run(
        *common, "fit", "--run", f"runs/{name}/epoch", "--epochs", "1", *knobs,
        "--lanes", str(lanes), "--batch_size", str(min(64, found["largest"] * lanes)),
    )  # fmt: skip
    assert epoch.returncode == 0, epoch.stdout + epoch.stderr


def test_a_training_that_the_kernel_kills_says_so(checkout) -> None:
    data = checkout.path.parent / "pictures-killed"
    slow_pictures(data, count=64, side=160)
    done = run(
        "--memory", "1300m", "--memory-swap", "1300m", "-e", "CPUS=1",
        "-v", f"{checkout.path}/train:/lockstep/train:ro", "-v", f"{data}:/lockstep/data:ro", IMAGE,
        *["fit", "--data.source", "folder", "--data.root", "data", "--data.size", "160", "--model.name", "convnet"],
        "--lanes", "1", "--batch_size", "64",
    )  # fmt: skip
    assert done.returncode == 6, done.stdout + done.stderr
    assert (
        "error: the kernel killed a trainer, or its loader, for lack of memory (the cgroup's limit is 1.3 GiB)"
        in done.stderr
    )
    assert "are needed, and the cgroup's limit has 1.3" in done.stdout
