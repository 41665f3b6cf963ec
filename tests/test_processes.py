"""What holds with real processes: the same bits, the same figures, signals and lost peers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import DIGITS, ROOT, one_line
from fault.harness import processes

pytestmark = pytest.mark.slow

SHORT = [*DIGITS, "--max_steps", "30", "--eval.every", "10", "--checkpoint.every", "10"]


def result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def trained(run: Path, count: int, *knobs: str) -> dict:
    done = processes(count, "fit", *SHORT, *knobs, "--run", run)
    assert done.code == 0, done.err
    assert json.loads((run / "run.json").read_text())["world_size"] == count
    return result(run)


def test_evaluation_is_exact_on_one_two_and_three_processes(tmp_path) -> None:
    """361 samples, which neither two nor three divides."""
    figures = trained(tmp_path / "run", 1)["metrics"]
    assert figures["samples"] == sum(map(sum, figures["confusion"])) == 361
    for count in (1, 2, 3):
        done = processes(count, "evaluate", "--run", tmp_path / "run")
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert {name: found[name] for name in figures} == figures


def start(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **variables},
    )  # fmt: skip


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")


def finish(child: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = child.communicate(timeout=60)
    return child.returncode, err


@pytest.mark.parametrize(
    ("cpus", "number"),
    [
        ("1", signal.SIGINT),
        ("2", signal.SIGINT),
        ("1", signal.SIGTERM),
        ("2", signal.SIGTERM),
        ("1", signal.SIGHUP),
    ],
)
def test_a_signal_to_the_launch_saves_and_stops(tmp_path, cpus, number) -> None:
    """Ctrl-C in `make train`, the stop of a container, or a terminal that was closed."""
    run = tmp_path / "run"
    launch = ["-m", "train.launch", "fit", *DIGITS, "--run", str(run)]
    child = start(*launch, CPUS=cpus)
    wait_for(run / "checkpoints" / "step-00000045")
    before = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(number)
    code, err = finish(child)
    assert code == 75, err
    assert one_line(err).startswith("stopped: a signal came; step ")  # and no launcher's block
    assert result(run)["status"] == "stopped"
    assert json.loads((run / "run.json").read_text())["exit_code"] == 75
    assert not [p for p in before if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    newest = max(p.name for p in (run / "checkpoints").glob("step-*"))
    assert int(newest.removeprefix("step-")) == result(run)["steps"]


def test_ctrl_c_to_every_process_at_once_saves_and_stops(tmp_path) -> None:
    """As some schedulers send it: the launcher passes it on beside it, which is no second one."""
    run = tmp_path / "run"
    child = start("-m", "train.launch", "fit", *DIGITS, "--run", str(run), CPUS="2")
    wait_for(run / "checkpoints" / "step-00000045")
    for process in [child, *psutil.Process(child.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    code, err = finish(child)
    assert code == 75, err
    assert one_line(err).startswith("stopped: a signal came; step ")
    assert result(run)["status"] == "stopped"


@pytest.mark.parametrize("cpus", ["1", "2"])
def test_a_run_that_is_finished_ends_well_whatever_comes_then(tmp_path, cpus) -> None:
    """Ctrl-C, twice, while the report is drawn."""
    run = tmp_path / "run"
    few = ["--max_steps", "4"]
    child = start("-m", "train.launch", "fit", *DIGITS, *few, "--run", str(run), CPUS=cpus)
    assert child.stdout is not None
    assert any("result in" in line for line in child.stdout)
    for process in [*psutil.Process(child.pid).children(recursive=True), child]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    code, err = finish(child)
    assert code == 0, err
    assert result(run)["status"] == "finished"


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = int(next(row for row in rows if row.startswith("SigCgt:")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("seconds", [0.8, 3, 5])
def test_an_early_signal_ends_the_launch_and_leaves_nothing_running(tmp_path, seconds) -> None:
    """While Accelerate is imported, while torch is, or while data is loaded."""
    child = start("-m", "train.launch", "fit", *DIGITS, "--run", str(tmp_path / "run"))
    time.sleep(seconds)
    while not listens(child.pid):
        time.sleep(0.05)  # Python itself takes that long to start on a busy machine
    before = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGTERM)
    code, err = finish(child)
    assert code == 75, err
    assert err.splitlines()[-1].startswith("stopped: a signal came")
    assert not [p for p in before if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("seconds", [0.5, 2])
def test_a_command_that_does_not_train_has_nothing_to_save(finished, number, code, seconds) -> None:
    """It reads names of pictures, and none come."""
    with subprocess.Popen(
        [sys.executable, "-m", "train.launch", "predict", "--run", str(finished), "-"],
        cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        time.sleep(seconds)
        child.send_signal(number)
        child.wait(60)
        assert child.stderr is not None
        assert "before training began" not in child.stderr.read()
    assert child.returncode in (code, -number)


SLOW = """
import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(64, classes)

    def forward(self, images):
        if self.training and len(images) > 100:  # a step, and not the few of the trial
            some = torch.rand(1024, 1024)
            for _ in range(600):
                some = (some @ some).clamp(0, 1)
        return self.last(images.flatten(1))


def build(classes, shape):
    return Slow(classes)
"""


def test_a_second_ctrl_c_does_not_wait(tmp_path) -> None:
    run = tmp_path / "run"
    (tmp_path / "slow.py").write_text(SLOW)
    # A step that takes long: the flag alone would not end it soon.
    child = start(
        "-m", "train", "fit", "--config", str(ROOT / "configs/digits.yaml"), "--run", str(run),
        "--model.name", "slow:build", "--lanes", "1", "--reproducibility", "fast",
        "--numerics", "native", "--checkpoint.every", "1", "--optim.lr", "0.01",
        cwd=tmp_path, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1",
    )  # fmt: skip
    wait_for(run / "tensorboard")
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    time.sleep(1)
    assert child.poll() is None
    # Signals that come while one operation runs count as one: ask until it is heard.
    for _ in range(30):
        child.send_signal(signal.SIGINT)
        try:
            child.wait(1)
        except subprocess.TimeoutExpired:
            continue
        break
    assert finish(child)[0] == 130
    assert not (run / "checkpoints").exists()


def test_accelerate_launch_as_people_call_it(tmp_path) -> None:
    words = ["launch", "--config_file", "configs/accelerate/cpu.yaml", "-m", "train", "fit"]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "accelerate"), *words, *SHORT, "--run", tmp_path / "a"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert result(tmp_path / "a")["weights_sha256"] == trained(tmp_path / "b", 2)["weights_sha256"]


def test_nothing_is_left_in_tmpdir(tmp_path) -> None:
    """Launchers, loaders and loggers leave folders behind; a compiler's cache is to stay."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    environ = os.environ | {"TMPDIR": str(place), "CPUS": "2"}
    words = ["fit", *DIGITS, "--max_steps", "3", "--data.workers", "1", "--run", tmp_path / "run"]
    done = subprocess.run(
        [sys.executable, "-m", "train.launch", *map(str, words)],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name for path in place.iterdir() if "torchinductor" not in path.name] == []
    shutil.rmtree(place)


SLOW_DATA = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
sys.path.insert(0, {root!r})
from train.lanes.patience import all_done
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
rank = dist.get_rank()
if sys.argv[1] == "patient":
    with all_done("data", rank, 2):
        time.sleep(6 * rank)
else:
    time.sleep(6 * rank)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["patient", "not"])
def test_data_is_waited_for_longer_than_a_collective_would(tmp_path, kind) -> None:
    """One machine knows its data, the other looks at a million pictures first."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW_DATA.format(root=str(ROOT)))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*start, script, kind], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (kind == "patient"), done.stderr
