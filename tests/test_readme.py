"""Every command of the README is run, in order, in a copy of the repository."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, commands
from PIL import Image

README = (ROOT / "README.md").read_text()
# What these come to is known without a second run of the suite inside itself.
ELSEWHERE = {
    "make test": ".ci/run runs it",
    "make train ENGINE=docker CUDA=cuda12": "6 GB more",
    "make tune": "tests/test_tune.py",
}


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in commands(README)
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()


def test_what_the_readme_names_is_there() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`((?:configs|requirements)/[\w./]+\.\w+)`", README):
        assert (ROOT / name).exists(), name


def test_the_knobs_of_the_table_have_the_defaults_it_states() -> None:
    from train.config import knobs
    from train.knobs import default

    fields = dict(knobs())
    section = README.split("## What people change first")[1].split("**Your own")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|", section, re.MULTILINE)
    assert len(rows) > 10
    for names, defaults in rows:
        known = [default(fields[name]) for name in re.findall(r"`([\w.]+)`", names)]
        stated = [d.strip() for d in defaults.split(",")]
        if len(stated) == 1:
            stated *= len(known)
        assert [d.strip('"') for d in known] == stated, names


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked and new files as they are now, with this environment."""
    there = tmp_path_factory.mktemp("readme") / "lockstep"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, there / name)
    (there / ".venv").symlink_to(ROOT / ".venv")
    return there


@pytest.mark.slow
def test_the_commands_of_the_page_on_data_run(copy: Path) -> None:
    for line in commands((ROOT / "docs" / "data.md").read_text()):
        subprocess.run(line, shell=True, cwd=copy, capture_output=True, check=True)
    for name in ("digits-data.png", "look.png"):
        with Image.open(copy / "runs" / name) as drawn:
            assert drawn.size == (8 * 112, 6 * 128)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it waits for the others
def test_the_commands_of_the_readme_run(copy: Path) -> None:
    done = []
    for line in commands(README):
        if line in ELSEWHERE or line.startswith("docker "):  # see tests/container
            continue
        if line == "make tensorboard":
            serves(line, copy)
        else:
            outcome = subprocess.run(
                line, shell=True, cwd=copy, capture_output=True, text=True, check=False
            )
            said = outcome.stdout + outcome.stderr
            if "GPUS=" in line:  # the suite hides them
                assert "GPUS=4, and no GPUs can be seen here" in said
            else:
                assert outcome.returncode == 0, f"{line}\n{said}"
        done.append(line)
    assert len(done) > 8
    # What the text says came out.
    hashes = {
        json.loads(path.read_text())["weights_sha256"]
        for path in copy.glob("runs/**/result.json")
        if json.loads(path.read_text())["steps"] == 449
    }
    assert len(list(copy.glob("runs/**/result.json"))) >= 5
    assert len(hashes) == 1


def serves(line: str, where: Path) -> None:
    """Start a server, get its page, and end it."""
    server = subprocess.Popen(
        line, shell=True, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen("http://127.0.0.1:6006", timeout=5) as page:
                    assert "TensorBoard" in page.read().decode()
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("no page at http://127.0.0.1:6006")
    finally:
        for process in [*psutil.Process(server.pid).children(recursive=True), server]:
            process.terminate()
        server.wait()
