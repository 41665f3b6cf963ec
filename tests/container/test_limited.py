"""Real limits of a container: the doctor finds each, and the tuner lives with them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nvidia_smi
import pytest
from conftest import ROOT, slow_pictures
from nodes.machines import shifted_clock

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

IMAGE = "lockstep:cuda13"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "run", "--rm", *words], capture_output=True, text=True, check=False
    )


def test_the_doctor_finds_each_limit(checkout) -> None:
    parts = ("train", "doctor", "host")
    code = [w for part in parts for w in ("-v", f"{checkout.path}/{part}:/lockstep/{part}:ro")]
    limits = ["--cpus", "1", "--memory", "2g", "--shm-size", "64m"]
    done = run(*limits, *code, IMAGE, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)}
    for name, seen in (("CPUs", "1 of "), ("memory", "2.0 of "), ("shared memory", "0.06 GiB")):
        assert (found[name]["status"], found[name]["seen"][: len(seen)]) == ("warn", seen)
        assert found[name]["fix"]
    assert found["collectives"]["status"] == "ok"


FAULTS = {
    "open files": (["--ulimit", "nofile=512:512"], "limits", "warn", "512 open files"),
    "stack": (["--ulimit", "stack=1048576:1048576"], "limits", "warn", "stack 1024 KiB"),
    "read-only": (["--read-only"], "owner", "fail", "runs/ is on a file system that is mounted"),
    "another's folder": (
        ["--user", "4242:4242", "-v", "{another}:/lockstep/runs"],
        "owner",
        "fail",
        "runs/ belongs to UID 4343, and cannot be written by 4242",
    ),
    "full disk": (
        ["--tmpfs", "/lockstep/runs:size=100m,mode=1777"],
        "disk",
        "fail",
        "0.1 GB free for runs",
    ),
    "no inodes": (
        ["--tmpfs", "/lockstep/runs:size=6g,nr_inodes=50,mode=1777"],
        "disk",
        "fail",
        "6.4 GB free for runs, but 49 more files",
    ),
    "clock": (
        ["-v", "{clock}:/clock.so:ro", "-e", "LD_PRELOAD=/clock.so"],
        "clock",
        "fail",
        "it is years behind",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_doctor_finds_each_fault_of_a_container(fault, checkout, tmp_path) -> None:
    """And no other: what it warns of without the fault is the same with it."""
    given, name, status, seen = FAULTS[fault]
    places = {"another": str(tmp_path / "another"), "clock": ""}
    if fault == "another's folder":
        (tmp_path / "another").mkdir(mode=0o755)
        os.chown(tmp_path / "another", 4343, 4343)
    if fault == "clock":
        tmp_path.chmod(0o755)
        places["clock"] = str(shifted_clock(tmp_path, seconds=-10 * 365 * 86_400))
    code = [f"{checkout.path}/{part}:/lockstep/{part}:ro" for part in ("doctor", "host")]
    mounts = [word for place in code for word in ("-v", place)]
    words = [word.format(**places) for word in given]
    done = run("--shm-size", "2g", *mounts, *words, IMAGE, "doctor", "--json")
    found = {row["name"]: row for row in json.loads(done.stdout)}
    unwell = {n: row["status"] for n, row in found.items() if row["status"] in ("warn", "fail")}
    assert unwell == {name: status}, done.stdout
    assert found[name]["seen"].startswith(seen)
    assert found[name]["fix"]
    assert done.returncode == (6 if status == "fail" else 0)


def _doctor(**variables: str) -> dict[str, dict[str, str]]:
    words = [sys.executable, "-m", "doctor", "--json"]
    environ = {**os.environ, "ENGINE": "auto", "CUDA_VISIBLE_DEVICES": "0", **variables}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_an_engine_without_the_toolkit_and_a_second_engine(tmp_path, short) -> None:
    """The host has a GPU, as far as nvidia-smi goes; the engines are real."""
    row = {
        "index": 0, "uuid": "GPU-0f1a2b3c-0000-4d5e-8f90-a1b2c3d4e5f6", "name": "NVIDIA L4",
        "driver_version": "580.95.05", "compute_cap": "8.9", "memory.total": 23034,
    }  # fmt: skip
    nvidia_smi.write(tmp_path, [row])
    found = _doctor(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert found["toolkit"]["status"] == "fail"
    assert found["toolkit"]["seen"] == "Docker has no NVIDIA Container Toolkit"
    assert "nvidia-ctk runtime configure" in found["toolkit"]["fix"]
    with _second_engine(short) as place:
        found = _doctor(DOCKER_HOST=place)
        assert found["engine"]["status"] == "ok"
        assert found["engine"]["seen"].endswith(f" at {place}")
        assert "the image is not built yet" in found["inside"]["seen"]  # it is in the other engine
    found = _doctor(DOCKER_HOST=place)
    assert found["engine"]["seen"] == "no Docker engine answers"
    assert run("--entrypoint", "true", IMAGE).returncode == 0, "the first engine lost its network"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for sockets, whose names have 104 characters at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def _second_engine(folder: Path) -> Iterator[str]:
    """A second engine with images of its own; where it listens.

    It has a network namespace of its own: an engine without a bridge deletes the docker0 that it
    finds, and that one is the first engine's.
    """
    place = f"unix://{folder}/engine.sock"
    words = [
        "unshare",
        "--net",
        "dockerd",
        "--host",
        place,
        "--data-root",
        folder / "images",
        "--exec-root",
        folder / "run",
    ]
    words += ["--pidfile", folder / "pid", "--bridge", "none", "--iptables=false"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log) as engine,
    ):
        try:
            for _ in range(120):
                if run_docker(place, "version").returncode == 0:
                    break
                assert engine.poll() is None, (folder / "log").read_text()[-1000:]
                time.sleep(0.5)
            yield place
        finally:
            engine.terminate()


def run_docker(place: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "--host", place, *words], capture_output=True, text=True, check=False
    )


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
