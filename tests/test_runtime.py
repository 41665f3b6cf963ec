import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import DIGITS, ROOT, one_line
from fault.harness import processes
from torch import nn

from host import limits
from host.errors import HostError, UsageError
from host.lanes import said, share
from train.config import Config
from train.experiment import load
from train.lanes import order, seeds
from train.lanes import runtime as runtimes
from train.process.interrupt import listen


def test_threads_are_one_in_lockstep_and_the_machine_s_elsewhere() -> None:
    with runtimes.start(Config()) as runtime:
        assert (runtime.threads, torch.get_num_threads()) == (1, 1)
    with runtimes.start(Config(reproducibility="fast")) as runtime:
        assert runtime.threads == torch.get_num_threads() == limits.cpus()


def test_levels_pin_what_they_promise() -> None:
    for level, exact in (("fast", False), ("deterministic", True), ("lockstep", True)):
        with runtimes.start(Config(reproducibility=level)):
            assert torch.are_deterministic_algorithms_enabled() is exact
            assert torch.backends.cudnn.benchmark is not exact
            assert torch.backends.cuda.matmul.allow_tf32 is False
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    with runtimes.start(Config(tf32=True)):
        assert torch.backends.cuda.matmul.allow_tf32 is True


def test_a_lane_s_seed_depends_on_step_and_lane_alone() -> None:
    draws, generators = {}, seeds.Generators(nn.Identity())
    for step in range(3):
        for lane in range(3):
            generators.seed_lane(7, step, lane)
            draws[step, lane] = torch.rand(1).item()
    assert len(set(draws.values())) == 9
    generators.seed_lane(7, 1, 2)
    assert torch.rand(1).item() == draws[1, 2]


def test_seeds_are_those_of_torch() -> None:
    seeds.Generators(nn.Identity()).seed_lane(3, 1, 4)
    draw = torch.rand(5)
    torch.manual_seed(order.key(3, 1, 4) & (2**63 - 1))
    assert torch.equal(torch.rand(5), draw)


def test_processes_that_do_not_divide_the_lanes() -> None:
    with pytest.raises(UsageError, match="3 processes cannot share 8 lanes evenly") as raised:
        share(8, 3, batch=128, level="deterministic")
    assert raised.value.fix == "use 1 or 2 or 4 or 8 processes"
    with pytest.raises(
        UsageError, match="or 8 processes, or a new run with --lanes 3: other bits, and batch norm"
    ):
        share(8, 3, batch=48, level="deterministic")
    with pytest.raises(UsageError, match="9 processes cannot share 8 lanes →") as raised:
        share(8, 9, batch=128, level="lockstep")
    assert raised.value.fix.startswith(
        "use at most 8 processes, or a new run with --lanes 16: other bits"
    )
    with pytest.raises(UsageError, match="8 processes cannot share 1 lane →") as raised:
        share(1, 8, batch=64, level="lockstep")
    assert raised.value.fix == (
        "use 1 process, or a new run with --lanes 8: other bits, and batch norm sees 8 samples at a"
        " time instead of 64"
    )
    for level in ("lockstep", "fast", "deterministic"):
        assert [list(each) for each in share(8, 4, batch=128, level=level)] == [
            [0, 1], [2, 3], [4, 5], [6, 7],
        ]  # fmt: skip


def test_any_number_of_processes_shares_the_lanes() -> None:
    for lanes, world in itertools.product((1, 2, 8, 64), range(1, 65)):
        if world > lanes:
            continue
        shares = share(lanes, world, batch=128, level="lockstep")
        assert [lane for each in shares for lane in each] == list(range(lanes))
        counts = [len(each) for each in shares]
        assert max(counts) - min(counts) <= 1
    assert said(share(8, 3, batch=128, level="lockstep")) == "3+3+2"
    assert said(share(8, 3, batch=128, level="lockstep", asked="6,1,1")) == "6+1+1"


@pytest.mark.parametrize("asked", ["5,2", "8", "9,-1", "8,0", "5,3,", "five,three", "5;3", "4,4,0"])
def test_shares_that_are_none(asked) -> None:
    with pytest.raises(UsageError) as raised:
        share(8, 2, batch=128, level="lockstep", asked=asked)
    assert raised.value.problem == f"SHARES={asked} does not share 8 lanes among 2 processes"
    assert raised.value.fix == "give each a number of them, such as SHARES=4,4"
    with pytest.raises(UsageError, match="at deterministic all processes have as many"):
        share(8, 2, batch=128, level="deterministic", asked="5,3")


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [(1, 1), (8, 1), (31, 1), (32, 2), (48, 2), (63, 1), (64, 4), (100, 4), (127, 1), (128, 8),
     (136, 8), (1000, 8), (4096, 8)],
)  # fmt: skip
def test_lanes_follow_from_the_batch_alone(batch, lanes) -> None:
    assert Config(batch_size=batch).lanes == lanes
    assert load(None, {"batch_size": str(batch)}).lanes == lanes
    assert Config(batch_size=batch, lanes=1).lanes == 1


def test_an_error_of_one_is_an_error_of_all() -> None:
    with runtimes.start(Config()) as runtime:
        assert runtime.from_main(5) == 5
        with runtime.together():
            value = 5
        assert value == 5
        with pytest.raises(UsageError, match="no"), runtime.together():
            raise UsageError("no", "yes", one_rank=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_set_a_flag_and_leave_the_old_handlers(number) -> None:
    before = signal.getsignal(number)
    with listen() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.signal == number
    # It is on its way out: another request must not cut it short.
    assert signal.getsignal(number) == signal.SIG_IGN
    signal.signal(number, before)
    with listen():
        pass
    assert signal.getsignal(number) == before


def accelerate(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The launcher as people call it, on a hardware config of ours."""
    return subprocess.run(
        [
            str(Path(sys.executable).parent / "accelerate"), "launch", "--config_file",
            f"configs/accelerate/{name}.yaml", *words,
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu", "multi_gpu", "fp16", "bf16"])
def test_a_gpu_config_without_gpus_is_an_error_and_not_lone_trainers(name, tmp_path) -> None:
    done = accelerate(name, "-m", "train", "fit", *DIGITS, "--run", str(tmp_path / "r"))
    assert done.returncode != 0
    assert "asked for on this machine, where torch sees 0 GPUs" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_processes_asked_for_that_did_not_come_up_are_an_error(tmp_path) -> None:
    """With a single-process config Accelerate starts one process, whatever is asked for."""
    done = accelerate(
        "cpu", "--num_processes", "2", "--quiet", "-m", "train", "fit", *DIGITS, "--run",
        str(tmp_path / "r"),
    )  # fmt: skip
    assert done.returncode != 0
    assert "several processes were asked for and 1 came up" in one_line(done.stderr)
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_more_processes_than_lanes_is_an_error(tmp_path) -> None:
    done = processes(2, "fit", *DIGITS, "--lanes", 1, "--run", tmp_path / "r")
    assert done.code != 0
    assert "2 processes cannot share 1 lane → use 1 process" in done.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("engine", ["DEEPSPEED", "MEGATRON_LM"])
def test_engines_that_shard_are_refused_by_name(monkeypatch, engine) -> None:
    """On the CPU Accelerate would go on without them, and without a word."""
    monkeypatch.setenv(f"ACCELERATE_USE_{engine}", "true")
    with pytest.raises(HostError, match=f"asks for {engine}"), runtimes.start(Config()):
        pass


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("GRADIENT_ACCUMULATION_STEPS", "4", "--lanes N cuts a batch"),
        ("DYNAMO_BACKEND", "INDUCTOR", "--model.compile true"),
        ("GRADIENT_CLIPPING", "1.0", "--optim.clip"),
        ("MIXED_PRECISION", "fp8", "one of no, fp16 and bf16"),
    ],
)
def test_what_accelerate_would_do_by_itself_is_refused(monkeypatch, name, value, instead) -> None:
    """It would divide every gradient, compile the model, and so on: other bits, without a word."""
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(HostError) as refused, runtimes.start(Config()):
        pass
    assert f"ACCELERATE_{name} is {value}" in refused.value.problem
    assert instead in refused.value.fix


def test_fp16_on_the_cpu_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(HostError, match="FP16 needs a GPU"), runtimes.start(Config()):
        pass


@pytest.mark.slow
def test_bf16_on_the_cpu_trains(cli, monkeypatch, tmp_path) -> None:
    import json

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    words = ["fit", *DIGITS, "--numerics", "native", "--batch_size", 32, "--max_steps", 30]
    done = cli(*words, "--run", tmp_path / "r")
    assert done.code == 0
    assert (
        json.loads((tmp_path / "r/run.json").read_text())["hardware"]["mixed_precision"] == "bf16"
    )
    assert json.loads((tmp_path / "r/result.json").read_text())["metrics"]["top1"] > 0.3


@pytest.mark.parametrize("there", [{}, {"RANK": "1"}, {"RANK": "0", "MASTER_ADDR": "localhost"}])
def test_several_that_were_not_told_where_to_meet(there, monkeypatch) -> None:
    """Accelerate's error for it reads as if the precision were wrong."""
    for name, value in {"WORLD_SIZE": "2", **there}.items():
        monkeypatch.setenv(name, value)
    for name in {"RANK", "MASTER_ADDR", "MASTER_PORT"} - there.keys():
        monkeypatch.delenv(name, raising=False)
    expected = pytest.raises(HostError, match=r"WORLD_SIZE=2 without .*MASTER_PORT")
    with expected, runtimes.start(Config()):
        pass
