"""The devcontainer comes up by itself, knows this host, and runs the tests."""

import os
import shutil
import subprocess

import pytest
from checkouts import Checkout, copy
from test_host import A100, V550, V580, smi

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

CLI = ("npm", "exec", "--yes", "--", "@devcontainers/cli@0.89.0")


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Checkout:
    """A checkout that belongs to whoever runs the tests: the CLI asks for the caller's name."""
    return copy(tmp_path_factory.mktemp("devcontainer") / "lockstep", os.getuid())


def host_yml(checkout: Checkout, path: str) -> str:
    words = ["python3", "-m", "container.devcontainer"]
    env = {"PATH": path, "BASE_IMAGE": os.environ.get("BASE_IMAGE", "")}
    subprocess.run(words, cwd=checkout.path, env=env, check=True, capture_output=True)
    return (checkout.path / ".devcontainer/host.yml").read_text()


def test_it_takes_the_line_and_the_gpus_of_the_host_without_an_edit(mine, tmp_path) -> None:
    path = os.environ["PATH"]
    assert "cuda13" in (without := host_yml(mine, path))
    assert "extends" not in without
    folder = smi(tmp_path / "old", V550, [A100])
    (folder / "nvidia-container-runtime-hook").write_text("#!/bin/sh\n")
    (folder / "nvidia-container-runtime-hook").chmod(0o755)
    old = host_yml(mine, f"{folder}:{path}")
    assert "lockstep-dev:cuda12" in old
    assert "CUDA: cuda12" in old
    assert "docker-compose.gpu.yml" in old
    files = ["-f", "docker-compose.yml", "-f", ".devcontainer/host.yml"]
    config = mine.run("docker", "compose", *files, "config")
    assert config.code == 0, config.said
    assert config.said.count("capabilities:") >= 1
    smi(folder, V580, [A100])
    assert "lockstep-dev:cuda13" in host_yml(mine, f"{folder}:{path}")


@pytest.mark.skipif(not shutil.which("npm"), reason="the devcontainer CLI comes from npm")
def test_it_comes_up_and_runs_the_tests(mine) -> None:
    home = {"HOME": os.environ["HOME"]}
    up = mine.run(*CLI, "up", "--workspace-folder", ".", **home)
    try:
        assert '"outcome":"success"' in up.said, up.said[-3000:]
        inside = (*CLI, "exec", "--workspace-folder", ".")
        tests = mine.run(
            *inside, "make", "test", "ARGS=-q tests/test_floors.py tests/test_order.py", **home
        )
        assert tests.code == 0, tests.said
        assert " passed" in tests.said
        found = mine.run(
            *inside, "/opt/venv/bin/python", "-m", "pytest", "--collect-only", "-q", **home
        )
        assert "tests/test_order.py::" in found.said
        made = mine.run(*inside, "touch", "runs/mine", **home)
        assert made.code == 0
        assert (mine.path / "runs/mine").stat().st_uid == os.getuid()
    finally:
        mine.remove()
