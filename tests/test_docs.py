"""Every command of README and docs is run, page by page, each page in a copy of the repository."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, commands, picture, stated_hash
from PIL import Image

README = (ROOT / "README.md").read_text()
EVERY = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))]
# What is tested elsewhere, and where.
ELSEWHERE = {
    "make test": ".ci/run runs it",
    "make train ENGINE=docker CUDA=cuda12 CONFIG=configs/cifar10.yaml": "6 GB more",
    'make tune ARGS="--what batch"': "tests/test_tune.py",
    "make test-gpu": "tests/gpu",
    "python benchmarks/gpu.py --out docs/GPU.md": "tests/test_gpu_proof.py",
}
# See test_extending.py, nodes/test_page.py and test_migrating.py.
APART = ("docs/EXTENDING.md", "docs/nodes.md", "docs/MIGRATING.md")
PAGES = [
    page
    for page in EVERY
    if page not in APART
    and any(
        line not in ELSEWHERE and not line.startswith("docker ")
        for line in commands((ROOT / page).read_text())
    )
]
STOPPED = "make train RUN=runs/third"
# Pages with trainings of the whole of digits: all of them end in the bits that the README shows.
WHOLE = ("README.md", "docs/elsewhere.md")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in commands(README)
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.parametrize("page", EVERY)
def test_what_a_page_names_is_there(page: str) -> None:
    path = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", path.read_text()):
        there = (path.parent / target) if target else path
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in known, (target, anchor)
    for name in re.findall(r"`((?:configs|requirements)/[\w./]+\.\w+)`", path.read_text()):
        assert (ROOT / name).exists() or "mine" in name, name


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert len(README.splitlines()) <= 120
    named = set(re.findall(r"\]\((docs/[\w.-]+\.md)", README))
    assert named == {page for page in EVERY if page != "README.md"}


def test_the_knobs_of_the_table_have_the_defaults_it_states() -> None:
    from train.config import knobs
    from train.knobs import default

    fields = dict(knobs())
    page = (ROOT / "docs" / "experiments.md").read_text()
    section = page.split("## What people change first")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|", section, re.MULTILINE)
    assert len(rows) > 10
    for names, defaults in rows:
        known = [default(fields[name]) for name in re.findall(r"`([\w.]+)`", names)]
        stated = [d.strip() for d in defaults.split(",")]
        if len(stated) == 1:
            stated *= len(known)
        assert [d.strip('"') for d in known] == stated, names


def run(line: str, where: Path) -> str:
    """Run a command of a page; returns what it said."""
    if line == "make tensorboard":
        serves(line, where)
        return ""
    done = subprocess.run(line, shell=True, cwd=where, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if "GPUS=" in line:  # the suite hides them
        assert "GPUS=4, and no GPUs can be seen here" in said
    else:
        assert done.returncode == 0, f"{line}\n{said}"
    return said


def test_no_two_pages_train_into_one_directory() -> None:
    """Who reads them all runs them all."""
    places: dict[str, set[str]] = {}
    for page in PAGES:
        for line in commands((ROOT / page).read_text()):
            found = re.match(r"make (?:train|sweep|seeds) .*RUN=(\S+)", line)
            if found:
                places.setdefault(found.group(1), set()).add(page)
    assert {place: pages for place, pages in places.items() if len(pages) > 1} == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it waits for the others
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(local_copy: Path, page: str) -> None:
    text = (ROOT / page).read_text()
    lines = [line for line in commands(text) if line not in ELSEWHERE]
    lines = [line for line in lines if not line.startswith("docker ")]  # see tests/container
    assert lines
    if page == "docs/export.md":
        picture(local_copy / "data" / "new" / "zero.pgm", 80)
    said = ""
    for line in lines:
        if line == STOPPED:
            stop_in_the_middle(line, local_copy)
        else:
            said += run(line, local_copy)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        subprocess.run([sys.executable, "-c", code], cwd=local_copy, check=True)
    # What the text says came out.
    results = [json.loads(path.read_text()) for path in local_copy.glob("runs/**/result.json")]
    hashes = {each["weights_sha256"] for each in results if each["steps"] == 449}
    assert hashes == ({stated_hash()} if page in WHOLE else set())
    if page == "docs/sweeps.md":
        shown = re.findall(
            r"^(trial \d .* top-1 +[\d.]+ %|\d +[\d.]+ +[\d.]+ %)", text, re.MULTILINE
        )
        assert len(shown) == 4
        assert all(line in said for line in shown), said
    if page == "docs/predictions.md":
        rows = [
            json.loads(line) for line in (local_copy / "runs/new.jsonl").read_text().splitlines()
        ]
        assert [(row["file"], row["class"]) for row in rows] == [("data/new/zero.pgm", "0")]
    if page == "docs/data.md":
        for name in ("digits-data.png", "look.png"):
            with Image.open(local_copy / "runs" / name) as drawn:
                assert drawn.size == (8 * 112, 6 * 128)


def stop_in_the_middle(line: str, where: Path) -> None:
    """Start a training, and press Ctrl-C once it has a checkpoint."""
    with subprocess.Popen(
        line, shell=True, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not list(where.glob("runs/third/checkpoints/step-*")):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[0].decode()
    assert "--resume" in said
    assert json.loads((where / "runs/third/result.json").read_text())["status"] != "finished"


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
