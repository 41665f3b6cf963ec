"""Another PyTorch that python finds: what it says of itself, and what is said of it."""

import shlex
from pathlib import Path

import pytest
from recorded import HERE, build, load

from doctor import cuda_errors, pytorch
from host.machine import Answer, Machine
from host.nvidia import Gpu


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_80 sm_86 sm_90", (8, 6), True),
        ("sm_80 sm_90", (8, 9), True),  # of the same generation
        ("sm_86 sm_90", (8, 0), False),  # an older one of it
        ("sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", (12, 0), False),
        ("sm_80 sm_90 compute_90", (12, 0), True),  # translated as it starts
        ("sm_80 sm_90a", (9, 0), True),
        ("sm_80 sm_90a compute_90a", (10, 0), False),  # for one kind alone
        ("sm_100f sm_120", (12, 1), True),
        ("gfx1100", (8, 6), False),
    ],
)
def test_kernels_that_run_on_a_gpu(built, capability, runs) -> None:
    assert pytorch._runs(built.split(), capability) is runs


@pytest.mark.parametrize(
    ("capabilities", "instead"),
    [
        (["6.1"], "(cu126)"),
        (["6.1", "8.6"], "(cu126)"),
        (["8.6", "8.7"], "(cu128)"),
        (["12.1"], "(cu130)"),
        (["6.1", "12.0"], "no one build runs on all of them"),
        (["[N/A]"], "(cu128)"),
    ],
)
def test_what_to_install_for_these_gpus(tmp_path, capabilities, instead) -> None:
    gpus = [Gpu({"compute_cap": each, "name": "NVIDIA"}) for each in capabilities]
    assert instead in pytorch._instead(Machine(tmp_path), gpus)


def answered(folder: Path, name: str, asked: dict[str, Answer], **environ: str) -> Machine:
    """A recorded machine whose python says this."""
    machine = build(load(HERE / f"machines/{name}.yaml"), folder, told=True)
    (folder / "bin/python").write_text("#!/bin/sh\n")
    (folder / "bin/python").chmod(0o755)
    for program, answer in asked.items():
        machine.answers[shlex.join(["python", "-c", program])] = answer
    machine.environ.update(environ)
    return machine


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("torch: 2.9.1 12.8 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120\n", "ok", "2.9.1 for CUDA 12.8"),
        ("hello from sitecustomize\ntorch: 2.9.1 12.8 sm_90\n", "ok", "2.9.1 for CUDA 12.8"),
        ("torch: 2.9.1+cpu CPU\n", "warn", "is built for the CPU"),
        ("torch: 2.5.0a0+git1 AMD\n", "warn", "is built for GPUs of AMD"),
        ("torch: 2.7.1+xpu Intel\n", "warn", "is built for GPUs of Intel"),
        ("torch: 1.13.1 11.7 sm_70 sm_80 sm_86\n", "warn", "has no kernels for NVIDIA H100"),
        ("torch: 2.9.1 12.8\n", "ok", "2.9.1 for CUDA 12.8"),  # it does not say for what
        ("torch:\n", "skip", "none that python finds"),
        ("", "skip", "none that python finds"),
    ],
)
def test_what_is_said_of_it(tmp_path, said, status, words) -> None:
    machine = answered(tmp_path, "8xh100", {pytorch.ASKED: Answer(0, said, "")})
    found = pytorch.other(machine)
    assert found.status == status
    assert words in found.seen


def test_it_is_not_ours_that_is_asked(tmp_path) -> None:
    machine = answered(tmp_path, "8xh100", {pytorch.ASKED: Answer(0, "torch: 2.9.1 CPU\n", "")})
    machine.environ["PATH"] = f"{machine.home}/.venv/bin"
    assert pytorch.other(machine).status == "skip"


@pytest.mark.parametrize("visible", ["0", "MIG-41b36143-0bb4-5d4e-9b5d-1c2d3e4f5a6b"])
def test_a_driver_that_is_too_old_for_it(tmp_path, visible) -> None:
    said = {pytorch.ASKED: Answer(0, "torch: 2.11.0 13.0 sm_90 sm_100\n", "")}
    machine = answered(tmp_path, "8xh100", said, CUDA_VISIBLE_DEVICES=visible)
    for driver, status in (("535.183.01", "warn"), ("580.65.06", "ok"), ("470.57.02", "ok")):
        path = tmp_path / "root/sys/module/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(driver)
        assert pytorch.other(machine).status == status, driver


@pytest.mark.parametrize(
    ("out", "err", "status"),
    [
        ("torch: 12.8 True\n", "", "ok"),
        (
            "torch: 12.8 False\n",
            (
                "a.py:1: UserWarning: CUDA initialization: Unexpected error from"
                " cudaGetDeviceCount(). Did you run some cuda functions before calling"
                " NumCudaDevices() that might have already set an error? Error 802: system not yet"
                " initialized (Triggered …)\n  return\n"
            ),
            "fail",
        ),
        ("torch: 12.8 False\n", "UserWarning: Failed to initialize NumPy: \n no\n", "skip"),
        ("torch: 13.0 False\n", "x: CUDA initialization: The NVIDIA driver is too old", "skip"),
        ("torch: None False\n", "", "skip"),
    ],
)
def test_it_says_whether_cuda_starts_where_nobody_else_does(tmp_path, out, err, status) -> None:
    machine = answered(tmp_path, "8xh100", {pytorch.STARTS: Answer(0, out, err)})
    machine.answers = {k: v for k, v in machine.answers.items() if "ctypes" not in k}
    found = cuda_errors.starts(machine)
    assert found.status == status
    assert "\n" not in found.seen
