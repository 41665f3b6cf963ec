"""The doctor's command line on this machine and on recorded ones, and what the inside half says."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from recorded import build, load
from torch import nn
from torchvision.models import resnet18

from doctor import bridge, checks, cuda_errors, disks, finding, named
from doctor.inside import collectives, datasheet, devices, speed, verify
from host import machine as host_machine
from host import pci
from host.machine import Machine
from host.stages import Stages
from train.config import Config
from train.learn.models import build as build_model
from train.process import memory, stagewise
from train.process.ways import ways

ROOT = Path(__file__).resolve().parents[2]
MACHINES = Path(__file__).parent / "machines"


def doctor(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python3 -S -m doctor`: no site-packages, as on a machine where nothing is installed."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "doctor", *words],
        cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_on_a_bare_machine_it_needs_nothing_and_takes_a_moment(tmp_path) -> None:
    """A copy of the files alone: no environment, no engine, no packages."""
    for folder in ("host", "doctor"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    env = {"PATH": "/usr/bin:/bin", "ENGINE": "local", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "doctor", "--json"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    assert done.stderr == ""
    assert {row["status"] for row in rows} <= {"ok", "warn", "fail", "skip"}
    assert done.returncode == (6 if "fail" in {row["status"] for row in rows} else 0)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)) > 20


@pytest.mark.slow
def test_gpus_that_are_not_there_are_a_finding(tmp_path) -> None:
    done = doctor("--json", env={"GPUS": "2", "CPUS": "", "PATH": "/usr/bin:/bin"})
    (row,) = (row for row in json.loads(done.stdout) if row["name"] == "GPUS")
    assert row["status"] == "fail"
    assert "GPUS=2, and no GPUs can be seen here" in str(row)
    assert done.returncode == 6


def test_the_quick_half_is_silent_where_all_is_well() -> None:
    done = doctor("--quick", env={"CPUS": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "on_cpu", "code"),
    [("kernel-mismatch", False, 6), ("kernel-mismatch", True, 0), ("8xh100", False, 0),
     ("full-disk", True, 6), ("busy", False, 0), ("wrong-owner", True, 6)],
)  # fmt: skip
def test_the_quick_half_stops_what_cannot_train(name, on_cpu, code, tmp_path) -> None:
    machine = build(load(MACHINES / f"{name}.yaml"), tmp_path)
    if on_cpu:
        machine.environ = {**machine.environ, "CPUS": "1"}
    found = checks.quick(machine)
    said = finding.lines(found)
    assert any(f.status == "fail" for f in found) is bool(code)
    assert said.count("error: ") == bool(code)
    assert all(" → " in line for line in said.splitlines())


def test_make_train_asks_it_first(tmp_path) -> None:
    """Before anything is built; DOCTOR=0 and the CPU go on."""
    import nvidia_smi

    words = "Failed to initialize NVML: Driver/library version mismatch"
    nvidia_smi.write(tmp_path, [], said=[18, words])
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env.pop("CUDA_VISIBLE_DEVICES")
    for extra, stops in (([], True), (["DOCTOR=0"], False), (["CPUS=1"], False)):
        done = subprocess.run(
            ["make", "train", "ARGS=--no-such-knob", *extra],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert ("error: driver: " in done.stderr) is stops, done.stderr
        assert ("unknown argument --no-such-knob" in done.stderr) is not stops


def test_what_is_recorded_is_the_same_machine_again(tmp_path) -> None:
    file = tmp_path / "here.json"
    here = Machine()
    found = checks.examine(here)
    file.write_text(here.record())
    assert checks.examine(build(json.loads(file.read_text()), tmp_path / "again")) == found


@pytest.mark.parametrize("sign", [".dockerenv", "run/secrets/kubernetes.io/serviceaccount/token"])
def test_what_is_recorded_in_a_container_is_a_container_again(tmp_path, sign) -> None:
    """The kernel's log is the host's there."""
    killed = "[   9.1] Out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:9437184kB,\n"
    told = {"source": "one of our own", "dmesg": killed}
    inside = build({**told, "files": {f"/{sign}": ""}}, tmp_path / "first")
    file = tmp_path / "here.json"
    found = checks.examine(inside)
    file.write_text(inside.record())
    assert checks.examine(build(json.loads(file.read_text()), tmp_path / "again")) == found
    assert {f.name: f.status for f in found}["memory"] == "ok"
    outside = checks.examine(build(told, tmp_path / "outside"))
    assert {f.name: f.status for f in outside}["memory"] == "warn"


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        ([], {"ENGINE": "foo"}, 2, "error: ENGINE=foo is no engine → use auto, docker or local\n"),
        (["--verify", "none.yaml"], {}, 2, "error: there is no experiment none.yaml → look at the path\n"),
        (["--like", "runs/none"], {}, 2, "error: there is no run runs/none → look at the path\n"),
        (["--quick", "--record", "/proc/none/here.json"], {"CPUS": "1"}, 2, "error: /proc/none/here.json cannot be written: "),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_one_line(words, env, code, said) -> None:
    done = doctor(*words, env=env)
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_an_experiment_that_nothing_can_look_at_yet_is_said(tmp_path) -> None:
    here = Machine(environ={"ENGINE": "local"}, home=str(tmp_path))
    [only] = bridge.examine(here, "configs/digits.yaml", None, [])
    assert (only.name, only.status) == ("experiment", "warn")
    assert "make ready" in only.why


def test_what_may_freeze_the_machine_is_said_before_anything_is_started(tmp_path) -> None:
    name = "field-rtx5090-usb4-box-xid79-in-waiting"
    machine = build(load(MACHINES / f"{name}.yaml"), tmp_path)
    assert any("freeze" in f.why for f in checks.quick(machine))
    [only] = bridge.examine(machine, None, None, checks.examine(machine))
    assert only.status == "skip"
    assert "freeze" in only.seen


def test_the_json_is_of_a_schema() -> None:
    done = doctor("--quick", "--json", env={"CPUS": "1"})
    rows = json.loads(done.stdout)
    assert done.stderr == ""
    assert rows
    for row in rows:
        assert set(row) == {"name", "status", "seen", "why", "fix", "schema"}
        assert row["schema"] == 1
        assert all(isinstance(row[key], str) for key in set(row) - {"schema"})
    assert finding.from_json(done.stdout) == [
        finding.Finding(**{key: row[key] for key in set(row) - {"schema"}}) for row in rows
    ]


@pytest.mark.parametrize("columns", [80, 50, 132])
def test_no_row_is_wider_than_the_terminal(columns, tmp_path) -> None:
    for name in (
        "kernel-mismatch",
        "badly-seated",
        "field-docker-in-proxmox-lxc",
        "egpu-unauthorised",
    ):
        machine = build(load(MACHINES / f"{name}.yaml"), tmp_path / name)
        text = finding.table(checks.examine(machine), colour=False, columns=columns)
        # A fix stays on one line: of a command that is cut, the first half would run.
        rows = [row for row in text.splitlines() if not row.lstrip().startswith("→")]
        assert len(rows) < len(text.splitlines())
        longest = max(len(word) for row in rows for word in row.split())  # a word is never cut
        assert all(len(row) <= max(columns, 64 + longest) for row in rows)
        assert columns < 80 or all(len(row) <= columns for row in rows), text


@pytest.mark.parametrize("frozen", [False, True], ids=["pipe held", "frozen"])
def test_a_tool_that_cannot_be_killed_is_left_behind(frozen, tmp_path) -> None:
    """One whose output another process holds open; one that is frozen, which no signal reaches."""
    group = Path(f"/sys/fs/cgroup/freezer/lockstep-{os.getpid()}")
    if frozen and not os.access(group.parent, os.W_OK):
        pytest.skip("needs root and cgroup version 1's freezer")
    script = tmp_path / "nvidia-smi"
    freeze = f"echo $$ > {group}/cgroup.procs; echo FROZEN > {group}/freezer.state"
    script.write_text(f"#!/bin/sh\n{freeze if frozen else 'sleep 600 &'}\nsleep 600\n")
    script.chmod(0o755)
    if frozen:
        group.mkdir()
    machine = Machine(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    start = time.monotonic()
    try:
        answer = machine.run("nvidia-smi", "-L", seconds=2)
        again = machine.run("nvidia-smi", "-q", seconds=200)
    finally:
        took = time.monotonic() - start
        if frozen:
            (group / "freezer.state").write_text("THAWED")
        for process in psutil.process_iter(["cmdline"]):
            if str(tmp_path) in " ".join(process.info["cmdline"] or []) or (
                process.info["cmdline"] == ["sleep", "600"]
            ):
                process.kill()
        if frozen:
            while (group / "cgroup.procs").read_text().strip():
                time.sleep(0.05)
            group.rmdir()
        for left in host_machine._LEFT:  # or the interpreter says at its end that they still run
            left.wait(10)
    assert (answer.code, again.code) == (124, 124)
    assert "no answer in 2 s" in answer.err
    assert took < 60


def test_a_table_for_people() -> None:
    text = finding.table(
        [finding.ok("a", "fine"), finding.skip("b", "no GPU"), finding.skip("c", "no GPU"),
         finding.warn("long name", "seen", "why", "sudo mend")],
        colour=False,
    )  # fmt: skip
    assert text.splitlines() == [
        "ok    a          fine",
        "warn  long name  seen",
        "                 why",
        "                 → sudo mend",
        "skip  no GPU: b, c",
        "1 ok, 1 warn, 2 skip",
    ]
    assert "\033[33mwarn" in finding.table([finding.warn("a", "b", "c", "d")], colour=True)


@pytest.mark.slow
def test_what_the_environment_says_comes_through(tmp_path) -> None:
    """The real inside half, in this environment; and one that does not start."""
    machine = Machine(environ={**os.environ, "ENGINE": "local", "CPUS": "2"})
    found = bridge.examine(machine, "configs/digits.yaml", None, [])
    said = {f.name: f for f in found}
    assert said["torch"].seen.startswith(torch.__version__)
    assert said["lanes"].seen.startswith("batch 128 = 2 × 4 × 16")
    assert said["collectives"].status == "ok"
    assert "1,436 training" in said["data"].seen
    broken = tmp_path / ".venv/bin/python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'ModuleNotFoundError: torch' >&2\nexit 1\n")
    broken.chmod(0o755)
    here = Machine(environ={"ENGINE": "local"}, home=str(tmp_path))
    [only] = bridge.examine(here, None, None, [])
    assert (only.status, only.seen) == ("fail", "ModuleNotFoundError: torch")


@pytest.mark.slow
def test_processes_that_talk(monkeypatch) -> None:
    found = collectives.check(2, "gloo", 20)
    assert found.status == "ok"
    for name in ("all-reduce", "broadcast", "send/recv"):
        assert f"{name} " in found.seen
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothere0")
    found = collectives.check(2, "gloo", 20)
    assert found.status == "fail"
    assert "nothere0" in found.seen
    assert "GLOO_SOCKET_IFNAME=lo" in found.fix
    assert found.fix.endswith("# tried, and helps")


@pytest.mark.slow
def test_a_peer_that_never_answers_ends_at_the_limit(monkeypatch) -> None:
    """The real check; one of its processes is stopped, each time it is started."""
    over = threading.Event()

    def stop() -> None:
        while not over.is_set():
            for child in psutil.Process().children():
                try:
                    words = child.cmdline()
                    if "doctor.inside.collectives" in words and words[-2] == "1":
                        child.suspend()
                except psutil.Error:
                    continue
            time.sleep(0.02)

    monkeypatch.setattr(collectives, "_LATE", 3)
    monkeypatch.setattr(collectives, "_TRIES", {"gloo": ()})  # each would take as long
    thread = threading.Thread(target=stop)
    thread.start()
    start = time.monotonic()
    try:
        found = collectives.check(2, "gloo", 3)
    finally:
        over.set()
        thread.join()
    assert found.status == "fail"
    assert found.seen.startswith("no answer within 3 s: process 0 at the meeting")
    assert "GLOO_SOCKET_IFNAME" in found.fix
    assert time.monotonic() - start < 60
    assert not [
        c for c in psutil.Process().children() if "doctor.inside.collectives" in c.cmdline()
    ]


# As torch prints them; the numbers are CUDA's.
UNEXPECTED = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? "


@pytest.mark.parametrize(
    ("said", "number", "fix"),
    [
        (f"{UNEXPECTED}Error 802: system not yet initialized", "802", "nvidia-fabricmanager"),
        (f"{UNEXPECTED}Error 803: system has unsupported display driver / cuda driver combination", "803", "sudo reboot"),
        (f"{UNEXPECTED}Error 804: forward compatibility was attempted on non supported HW", "804", "cuda-compat"),
        (f"{UNEXPECTED}Error 101: invalid device ordinal", "101", "unset CUDA_VISIBLE_DEVICES"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "999", "nvidia_uvm"),
        ("The NVIDIA driver on your system is too old (found version 12080).", "35", "CUDA=auto"),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", "3", "uvm_disable_hmm"),
        ("No CUDA GPUs are available", "100", "--gpus all"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "46", "-c DEFAULT"),
        ("CUDA error: uncorrectable ECC error encountered", "214", "gpu-reset"),
        (f"{UNEXPECTED}Error 2: out of memory", "2", "GPUS=free"),
        (f"{UNEXPECTED}Error 36: API call is not supported in the installed CUDA driver", "36", "CUDA=auto"),
        ("CUDA error: no kernel image is available for execution on the device", "209", "CUDA=auto"),
        (f"{UNEXPECTED}Error 304: OS call failed or operation not supported on this OS", "304", "nvidia_uvm"),
        (f"{UNEXPECTED}Error 500: named symbol not found", "500", "wsl --update"),
        (f"{UNEXPECTED}Error 805: MPS client failed to connect to the MPS control daemon or the MPS server", "805", "MPS_PIPE"),
        (f"{UNEXPECTED}Error 4242: a new one", "", "dmesg"),
        ("something new", "", "dmesg"),
    ],
)  # fmt: skip
def test_what_cuda_says_when_it_does_not_start_is_told_apart(said, number, fix) -> None:
    found = cuda_errors.judge(said)
    assert found.status == "fail"
    assert found.seen.startswith(f"error {number}: " if number else said.removeprefix(UNEXPECTED))
    assert "Did you run" not in found.seen
    assert fix in found.fix


def test_datasheets_are_found_by_the_driver_s_name() -> None:
    memory = {
        "NVIDIA A100-SXM4-80GB": 2039, "NVIDIA A10": 600, "NVIDIA A100-PCIE-40GB": 1555,
        "NVIDIA H100 80GB HBM3": 3350, "NVIDIA L40S": 864, "Tesla V100-SXM2-32GB": 900,
        "NVIDIA GeForce RTX 3080 Ti": 912,
    }  # fmt: skip
    for name, rate in memory.items():
        sheet = datasheet.of(name)
        assert sheet is not None
        assert sheet.memory == rate, name
    for other in (
        "A1000",
        "GeForce GTX 1080",
        "GeForce RTX 3080 Laptop GPU",
        "A100-SXM4-40GB MIG 1g.5gb",
    ):
        assert datasheet.of(f"NVIDIA {other}") is None


def test_links_give_what_people_measure() -> None:
    """Published rates of pinned copies: 13, 26, 52 GB/s for x16; 6.6 for OCuLink."""
    rates = {(8.0, 16): 13, (16.0, 16): 26, (32.0, 16): 52, (16.0, 4): 6.6}
    for (speed_, width), rate in rates.items():
        assert pci.Link(speed_, width).rate == pytest.approx(rate, rel=0.03)
    assert speed.is_well(24.1, 26.4, 0.7)
    assert not speed.is_well(12.9, 26.4, 0.7)


def test_what_is_kept_for_the_backward_pass_is_counted_without_memory() -> None:
    """On shapes alone the same as in a real forward pass, and in step with the batch."""
    shape = (3, 64, 64)
    with torch.device("meta"):
        shapes = resnet18()
    counted = memory.saved(shapes, 4, shape)
    assert counted == memory.saved(resnet18(), 4, shape)
    assert memory.saved(shapes, 8, shape) == pytest.approx(2 * counted, rel=0.01)


@pytest.mark.parametrize(
    ("knobs", "world", "gradients", "moments"),
    [({}, 1, 3, 1), ({}, 8, 3, 1), ({}, 4, 3, 1), ({"lanes": 1}, 1, 1, 1),
     ({"optim": {"name": "adamw"}}, 1, 3, 2), ({"optim": {"momentum": 0}}, 1, 3, 0)],
)  # fmt: skip
def test_the_estimate_follows_lanes_processes_and_optimizer(
    knobs, world, gradients, moments
) -> None:
    config = Config(**knobs)
    with torch.device("meta"):
        model = build_model(config.model, 10, (1, 8, 8))
    need = memory.estimate(model, config, (1, 8, 8), 0, world=world, half=False)
    assert need.gradients == gradients * need.weights
    assert need.optimizer == moments * need.weights


@pytest.mark.parametrize(("world", "sums"), [(2, 2), (4, 1), (8, 1)])
def test_the_estimate_of_sharded_weights(world, sums) -> None:
    """A share of all that is as large as the weights, and two blocks of twelve."""
    config = Config(optim={"name": "adamw"}, batch_size=32, lanes=8)
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers)
    need = memory.estimate(model, config, (1, 8, 8), 0, world=world, half=False, sharded=True)
    size, two = (n * (256 * 256 + 256) * 4 for n in (12, 2))
    assert need.weights == size // world + two
    assert need.gradients == sums * size // world + two
    assert need.optimizer == 2 * size // world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "world", "visible", "names"),
    [
        ({}, 1, 8, "GPUS=4 ACCELERATE=fsdp"),
        ({}, 8, 8, "GPUS=8 ACCELERATE=fsdp"),
        ({}, 1, 2, None),
        ({"model": {"name": "vit_b_16", "channels_last": True}}, 1, 8, None),
        (
            {"optim": {"name": "lamb"}, "numerics": "native"},
            1,
            8,
            "GPUS=3 STAGES=3 (the same bits)",
        ),
        (
            {"optim": {"name": "lamb"}, "numerics": "native"},
            8,
            8,
            "GPUS=8 STAGES=4 (the same bits)",
        ),
    ],
)
def test_sharding_is_named_where_it_would_fit(knobs, world, visible, names) -> None:
    """ViT-B/16's weights are 0.33 GB; AdamW and eight lanes want six times as much."""
    usual = {"model": {"name": "vit_b_16"}, "optim": {"name": "adamw"}, "numerics": "native"}
    config = Config(**{"batch_size": 32, "lanes": 8, **usual, **knobs})
    room = 1.45e9  # as much as the trial before the first step takes
    found = ways(config, 10, (3, 224, 224), world=world, half=False, room=room, visible=visible)
    assert ("GPUS=" in found) == (names is not None), found
    assert names is None or names in found


def test_each_stage_needs_its_part() -> None:
    """Two stages of as many operations; the first one is a lane ahead of the second."""
    config = Config(batch_size=64, lanes=8, model={"name": "resnet18"})
    whole = memory.of_shapes(config, 10, (3, 64, 64), world=1, half=False)
    for staged in (Stages(2, (), ""), Stages(2, ("layer3",), "")):
        found = stagewise.needs(config, 10, (3, 64, 64), staged, half=False)
        first, last = found
        assert sum(need.weights for need in found) == whole.weights
        assert first.weights == pytest.approx(0.06 * whole.weights, rel=0.1)
        # What crosses is in both; the images are the first one's.
        lanes = first.activations / 2 + last.activations
        assert whole.activations < lanes < 1.1 * whole.activations
        assert (first.saved, first.start) == (whole.saved, whole.start)
        # Of eight lanes' sums three wait beside one that comes; two stages have them apart.
        assert last.gradients == 4 * last.weights
        for copies, many in (
            (2, 4),  # of four lanes two wait beside one that comes; and one is exchanged
            (3, 5),  # of lanes 3, 4 and 5 two, and two are exchanged
        ):
            every = stagewise.needs(config, 10, (3, 64, 64), staged, half=False, copies=copies)
            assert len(every) == 2 * copies
            bucket = 25 * 2**20
            assert every[1].gradients == pytest.approx(many * last.weights + bucket, rel=0.01)
    assert stagewise.needs(config, 10, (3, 64, 64), Stages(90, (), ""), half=False) is None


def test_stages_are_looked_at_before_they_train(monkeypatch) -> None:
    monkeypatch.setenv("CPUS", "2")
    monkeypatch.setenv("STAGES", "2")
    found = {f.name: f for f in verify.examine(ROOT / "configs/digits.yaml", Machine())}
    assert found["fits in memory"].status == "ok"
    monkeypatch.setenv("STAGES", "nowhere")
    found = {f.name: f for f in verify.examine(ROOT / "configs/digits.yaml", Machine())}
    assert found["fits in memory"].status == "skip"


@pytest.mark.slow
def test_an_experiment_that_does_not_fit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CPUS", "9")
    found = {f.name: f for f in verify.examine(ROOT / "configs/digits.yaml", Machine())}
    assert found["lanes"].status == "fail"
    assert "use at most 8 processes" in found["lanes"].fix
    wide = tmp_path / "wide.yaml"
    wide.write_text("model: {name: vgg16}\nbatch_size: 1024\nlanes: 1\ndata: {size: 256}\n")
    monkeypatch.setenv("CPUS", "1")
    found = {f.name: f for f in verify.examine(wide, Machine())}
    assert found["fits in memory"].status == "fail"
    assert "make tune" in found["fits in memory"].fix
    wide.write_text("data: {source: folder, root: nowhere}\n")
    found = {f.name: f for f in verify.examine(wide, Machine())}
    assert found["data"].status == "fail"
    assert "no directory nowhere" in found["data"].seen
    assert found["fits in memory"].status == "skip"
    missing = {f.name: f for f in verify.examine(tmp_path / "none.yaml", Machine())}
    assert missing["experiment"].status == "fail"
    assert missing["data"].status == "skip"


@pytest.mark.parametrize(
    ("variable", "asked", "meant"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth", []),
        ("NCCL_SOCKET_IFNAME", "=eth1,ib0", ["eth1"]),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "^=lo", ["docker0", "eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "ib", []),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", ["eth0", "eth1"]),
    ],
)
def test_which_interfaces_a_variable_means(variable, asked, meant) -> None:
    assert named.chosen(variable, asked, ["docker0", "eth0", "eth1", "lo"]) == meant


def test_a_torch_without_cuda_beside_a_gpu(tmp_path, monkeypatch) -> None:
    """As PyPI's of 2024 for aarch64: https://github.com/pytorch/pytorch/issues/123835"""
    name = "field-sound-mint-two-3090-at-eight-lanes-each"
    machine = build(load(MACHINES / f"{name}.yaml"), tmp_path)
    assert devices.build(machine).status == "ok"
    monkeypatch.setattr(torch.version, "cuda", None)
    found = devices.build(machine)
    assert found.status == "fail"
    assert "is built without CUDA" in found.seen
    (tmp_path / "bare").mkdir()
    assert devices.build(Machine(tmp_path / "bare", {"PATH": ""})).status == "ok"


@pytest.mark.parametrize(
    ("free", "files", "status", "says"),
    [
        (90, (300_000, 300_000), "warn", "300,000 more files"),
        (0.5, (300_000, 300_000), "fail", "0.5 GB free for runs"),
        (90, (300_000, 10), "fail", "10 more files"),
        (90, (2_000_000, 2_000_000), "ok", "90.0 GB free"),
    ],
)
def test_the_worst_of_room_and_inodes_is_said(tmp_path, free, files, status, says) -> None:
    """A warning of inodes must not stand before what ends a run."""
    folders = [f"/home/ada/lockstep/{name}" for name in ("runs", ".cache")]
    head = "Filesystem Inodes IUsed IFree IUse% Mounted on"
    rows = {
        f"df -iP {place}": f"{head}\n/dev/sda1 90000000 1 {left} 99% /\n"
        for place, left in zip(folders, files, strict=True)
    }
    known = {
        "source": "this test",
        "gpus": [],
        "df": {place: [free, 900] for place in folders},
        "says": rows,
    }
    found = disks.disk(
        build(known | {"folders": {place: [] for place in folders}}, tmp_path / "it")
    )
    assert (found.status, says in found.seen) == (status, True), found
