"""Secrets in twenty places: none of them is in what a run leaves or prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

VARIABLES = {
    "NCCL_FOO": "http://u:{}@host", "TORCH_MIRROR": "https://u:{}@host",
    "TORCHINDUCTOR_REDIS_URL": "redis://:{}@host", "HTTPS_PROXY": "http://u:{}@host:1",
    "http_proxy": "http://u:{}@host:1", "AWS_SECRET_ACCESS_KEY": "{}", "MY_PASSWORD": "{}",
    "NCCL_TOPO_FILE": "https://host/x?sv=1&sig={}", "CUDA_FOO": "{}", "PYTORCH_FOO": "{}",
    "OMP_FOO": "{}", "ACCELERATE_FOO": "{}", "NCCL_DEBUG_FILE": "{}/x.log", "CUDA_API_KEY": "{}",
    "DB_URL": "postgres://u:{}@host", "GLIBC_TUNABLES_": "{}",
}  # fmt: skip


def canary(number: int) -> str:
    return f"canary{number:034d}"  # as long as a key of Weights & Biases


def test_no_canary_is_in_a_run(tmp_path) -> None:
    """Variables, .env, a key's file and git's remote; Weights & Biases writes its files as well."""
    home = tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", ROOT, home], check=True)
    for name in ("train", "host", "configs"):  # as they are now
        subprocess.run(["cp", "-rT", ROOT / name, home / name], check=True)
    environ = {name: text.format(canary(n)) for n, (name, text) in enumerate(VARIABLES.items())}
    (tmp_path / "key").write_text(canary(16))
    environ["WANDB_API_KEY_FILE"] = str(tmp_path / "key")
    remote = f"https://me:{canary(17)}@host/x.git"
    subprocess.run(["git", "remote", "set-url", "origin", remote], cwd=home, check=True)
    (home / ".env").write_text(f"HF_TOKEN={canary(18)}\nSERVICE='https://h/x?sig={canary(19)}'\n")
    done = subprocess.run(
        [sys.executable, "-m", "train.launch", "fit", "--config", "configs/digits.yaml",
         "--max_steps", "2", "--run", "runs/canary", "--wandb.mode", "offline"],
        cwd=home, env=os.environ | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = [path for path in (home / "runs").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"run.json", "state.json"} <= names
    assert any(name.startswith("events.out") for name in names)
    assert any(name.endswith(".wandb") for name in names)
    said = {str(path.relative_to(home)): path.read_bytes() for path in files}
    said["the terminal"] = (done.stdout + done.stderr).encode()
    found = {name: re.findall(rb"canary\d+", text) for name, text in said.items()}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize("knob", ["data.root", "data.source", "config", "run"])
def test_no_canary_of_an_argument_is_said(tmp_path, knob) -> None:
    """An address is nothing that a knob takes: it is refused, without its password."""
    address = f"https://me:{canary(1)}@host/x?sig={canary(2)}"
    words = ["--config", "configs/digits.yaml", "--max_steps", "1", "--run", str(tmp_path / "run")]
    words += ["--data.source", "folder"] if knob == "data.root" else []
    done = subprocess.run(
        [sys.executable, "-m", "train.launch", "fit", *words, f"--{knob}", address],
        cwd=tmp_path if knob == "run" else ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.findall(r"canary\d+", done.stdout + done.stderr) == []
    assert done.returncode in (2, 3), done.stderr


def test_the_canaries_can_be_found(tmp_path: Path) -> None:
    """A control: the pattern is that of the test above."""
    assert re.findall(rb"canary\d+", f"x{canary(7)}y".encode()) == [canary(7).encode()]
    assert len({canary(n) for n in range(20)}) == 20
