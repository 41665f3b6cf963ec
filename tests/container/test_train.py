"""`make train` and Compose in a fresh checkout: the same bits, the caller's files, no second build."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from checkouts import Checkout, docker
from conftest import ROOT, commands, picture, stated_hash

PORT = 6106  # 6006 is for the tests without containers, which may run meanwhile

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]


def digits(run: Path, *knobs: str, where: Path = ROOT) -> str:
    """The weights that the local environment ends with."""
    config = ROOT / "configs/digits.yaml"
    words = [ROOT / ".venv/bin/python", "-m", "train", "fit", "--config", config, "--run", run]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*words, *knobs], cwd=where, env=environ, check=True, capture_output=True)
    return str(json.loads((run / "result.json").read_text())["weights_sha256"])


def test_the_container_ends_in_the_bits_of_the_local_environment(checkout, tmp_path) -> None:
    assert checkout.read("runs/first/result.json")["status"] == "finished"
    local = digits(tmp_path / "local", "--epochs", "4")
    assert checkout.read("runs/first/result.json")["weights_sha256"] == local


def test_all_files_belong_to_the_caller(checkout) -> None:
    owners = {path.stat().st_uid for path in (checkout.path / "runs").rglob("*")}
    owners |= {path.stat().st_uid for path in (checkout.path / ".cache").rglob("*")}
    assert owners == {checkout.uid}


def test_the_record_names_image_and_lock(checkout) -> None:
    manifest = checkout.read("runs/first/run.json")
    text = docker("run", "--rm", "lockstep:cuda13", "cat", "/etc/lockstep-image.json")
    assert manifest["image"] == json.loads(text)
    assert manifest["image"]["lock_sha256"] == manifest["lock_sha256"]
    assert any(name.startswith("python3:") for name in manifest["image"]["packages"])


def test_the_second_start_builds_nothing_and_prints_what_it_runs(checkout) -> None:
    again = checkout.run("make", "train", "CPUS=2", "RUN=runs/again", "ARGS=--max_steps 60")
    assert again.code == 0, again.said
    assert " build " not in again.said
    engine, command, *_ = again.said.splitlines()
    assert engine.startswith("engine: Docker ")
    assert command.endswith(
        " --rm train fit --config configs/digits.yaml --run runs/again --max_steps 60"
    )
    assert " docker compose run --name lockstep-train-" in command
    assert " -T " in command  # nobody sits in front of it
    # The command printed is the command run: it does the same without make.
    by_hand = checkout.run("sh", "-c", command.replace("runs/again", "runs/by-hand"))
    assert by_hand.code == 0, by_hand.said
    hashes = {
        checkout.read(f"runs/{r}/result.json")["weights_sha256"] for r in ("again", "by-hand")
    }
    assert len(hashes) == 1
    assert checkout.read("runs/by-hand/run.json")["world_size"] == 2


def test_an_edit_is_trained_without_a_build(checkout) -> None:
    path = checkout.path / "configs/mine.yaml"
    path.write_text(
        (checkout.path / "configs/digits.yaml").read_text().replace("name: digits", "name: mine")
    )
    code = checkout.path / "train/summary.py"
    before = code.read_text()
    code.write_text(before + "\n# mine\n")
    try:
        done = checkout.run(
            "make",
            "train",
            "CPUS=1",
            "CONFIG=configs/mine.yaml",
            "RUN=runs/edit",
            "ARGS=--max_steps 5",
        )
    finally:
        code.write_text(before)
    assert done.code == 0, done.said
    assert " build " not in done.said
    recorded = checkout.read("runs/edit/run.json")
    assert recorded["config"]["name"] == "mine"
    assert (
        recorded["code"]["train/summary.py"]
        != checkout.read("runs/first/run.json")["code"]["train/summary.py"]
    )


def test_the_other_verbs(checkout) -> None:
    figures = checkout.run("make", "eval", "RUN=runs/first")
    assert figures.code == 0, figures.said
    top1 = figures.json()["top1"]
    assert top1 == checkout.read("runs/first/result.json")["metrics"]["top1"]
    assert (
        checkout.run("make", "train", "CPUS=1", "RUN=runs/short", "ARGS=--max_steps 20").code == 0
    )
    again = checkout.run("make", "reproduce", "RUN=runs/short", "CPUS=2")
    assert again.code == 0, again.said
    assert "same bits: all 20 steps" in again.said
    seeds = ("N=2", "CPUS=2", "RUN=runs/seeds", "ARGS=--workers 2 --max_steps 20")
    several = checkout.run("make", "seeds", *seeds)
    assert several.code == 0, several.said
    assert checkout.read("runs/short/result.json")["weights_sha256"] in several.out
    assert "mean and standard deviation of 2 seeds" in several.out
    shown = checkout.run("make", "data")
    assert shown.code == 0, shown.said
    assert "training        1,436 pictures" in shown.said
    assert (checkout.path / "runs/digits-data.png").stat().st_uid == checkout.uid
    assert "--optim.warmup" in checkout.run("make", "knobs", "ARGS=warmup").said
    kept = checkout.run("make", "data", "ARGS=--cached")
    assert "files, " in kept.said
    assert " in /cache/lockstep" in kept.said
    misspelt = checkout.run("docker", "compose", "run", "--rm", "train", "evalute")
    assert "error: there is no verb evalute; did you mean evaluate?" in misspelt.said
    nothing = checkout.run("make", "reproduce")
    assert "error: which run? → make reproduce RUN=" in nothing.said


def test_pictures_are_predicted_and_only_the_lines_stand_on_the_standard_output(checkout) -> None:
    for number in range(3):
        picture(checkout.path / "data" / "new" / f"{number}.png", 80 * number)
    new = [f"data/new/{number}.png" for number in range(3)]
    by_make = checkout.run("make", "predict", "RUN=runs/first", "ARGS=data/new --show runs/new.png")
    assert by_make.code == 0, by_make.said
    rows = [json.loads(line) for line in by_make.out.splitlines()]
    assert [row["file"] for row in rows] == new
    assert (checkout.path / "runs/new.png").stat().st_uid == checkout.uid
    listing = f"printf '%s\\n' {new[2]} {new[0]} | make predict RUN=runs/first ARGS=-"
    listed = checkout.run("sh", "-c", listing)
    assert [json.loads(line)["file"] for line in listed.out.splitlines()] == [new[2], new[0]]
    by_compose = checkout.run(
        "docker", "compose", "run", "--rm", "predict", "--run", "runs/first", "data/new"
    )
    assert [json.loads(line) for line in by_compose.out.splitlines()] == rows, by_compose.said
    named = {"RUN": "runs/first"}
    alone = checkout.run("docker", "compose", "run", "--rm", "predict", new[0], **named)
    # In a batch of its own the last digits may be others.
    assert json.loads(alone.out)["probability"] == pytest.approx(rows[0]["probability"], abs=1e-5)
    outside = checkout.run("make", "predict", "ARGS=/etc/hostname")
    assert "/etc/hostname is outside what the container sees" in outside.said
    recipe = checkout.path / "Dockerfile"
    before = recipe.read_text()
    recipe.write_text(before + "\n# mine\n")  # the image is built again, from what is cached
    try:
        runs = checkout.run("make", "runs", "ARGS=first --json")
    finally:
        recipe.write_text(before)
    assert " build " in runs.said
    assert json.loads(runs.out)["run"] == "runs/first"


MINE = """import numpy as np
from torch.nn import functional

from train.learn.nets import convnet


def build(classes, shape):
    return convnet(classes, shape)


def tables(config):
    labels = np.arange(400) % 4
    noise = np.random.default_rng(0).integers(0, 60, (400, 8, 8))
    pixels = (noise + 50 * labels[:, None, None]).astype(np.uint8)
    return (pixels[:320], labels[:320]), (pixels[320:], labels[320:])


def loss(logits, labels):
    return functional.cross_entropy(logits, labels, reduction="none")
"""


def test_a_package_of_one_s_own(checkout, tmp_path) -> None:
    """CODE= puts a model, data and a loss beside ours, read-only: stopped, resumed, reproduced."""
    package = checkout.path.parent / "mine"  # outside of the checkout
    package.mkdir()
    (package / "__init__.py").write_text(MINE)
    knobs = "--model.name mine:build --data.source mine:tables --optim.loss mine:loss"
    knobs += " --optim.label_smoothing 0 --epochs 80 --checkpoint.every 20"
    words = ["make", "train", "CONFIG=configs/digits.yaml", "RUN=runs/mine"]
    words += [f"ARGS={knobs} --resume"]
    refused = checkout.run(*words, "CPUS=1")
    assert "put mine into the checkout, or name where it is: CODE=DIR/mine" in refused.said
    compose = ["docker", "compose", "run", "--rm", "train", "fit", *knobs.split()[:2]]
    alone = checkout.run(*compose, RUN="runs/alone")
    assert "mount it: docker compose run -v $PWD/mine:/lockstep/mine:ro" in alone.said
    words += [f"CODE={package}"]
    first = checkout.start(*words, "CPUS=1")
    while first.poll() is None and not list(checkout.path.glob("runs/mine/checkpoints/step-*")):
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal sends it
    said = first.communicate()[0]
    assert f"--volume {package}:/lockstep/mine:ro" in said
    assert "stopped: a signal came" in said, said
    assert f"to go on: make train CPUS=1 CODE={package} RUN=runs/mine ARGS=--resume" in said
    again = checkout.run(*words, "CPUS=2")
    assert again.code == 0, again.said
    assert "going on after step" in again.said
    assert set(checkout.read("runs/mine/run.json")["own_code"]) == {"mine"}
    local = digits(tmp_path / "run", *knobs.split(), where=package.parent)
    assert checkout.read("runs/mine/result.json")["weights_sha256"] == local
    same = ["make", "reproduce", "RUN=runs/mine", "CPUS=1", f"CODE={package}"]
    done = checkout.run(*same)
    assert (done.code, "same bits: all 200 steps" in done.said) == (0, True), done.said
    forgotten = checkout.run(*same[:-1])
    assert "your own code is not found: mine → put mine into the checkout, or" in forgotten.said
    (package / "__init__.py").write_text(MINE.replace("50 *", "40 *"))
    done = checkout.run(*same)
    assert "your own code changed since: mine" in done.said
    for wrong, said in (
        ("nowhere", "CODE=nowhere does not exist"),
        ("train", "CODE=train is part of the checkout"),
        ("README.md", "has no name that Python can import"),
    ):
        assert said in checkout.run(*words, f"CODE={wrong}").said


def test_a_package_in_the_checkout_is_there_without_a_word(checkout) -> None:
    """Named by a flag, by an experiment, or by the run that is measured."""
    package = checkout.path / "near"
    package.mkdir()
    (package / "__init__.py").write_text(MINE)
    experiment = checkout.path / "configs/near.yaml"
    digits = (checkout.path / "configs/digits.yaml").read_text()
    experiment.write_text(digits.replace("name: convnet", "name: near:build"))
    short = "--max_steps 3 --optim.label_smoothing 0"
    try:
        words = ["CPUS=1", "RUN=runs/near", f"ARGS={short} --optim.loss near:loss"]
        done = checkout.run("make", "train", "CONFIG=configs/near.yaml", *words)
        assert done.code == 0, done.said
        measured = checkout.run("make", "eval", "RUN=runs/near")
        assert measured.code == 0, measured.said
        assert f"{package}:/lockstep/near:ro" in measured.said
    finally:
        shutil.rmtree(package)
        experiment.unlink()


def test_the_quick_tests_run_in_the_container(checkout) -> None:
    """Those that look at what is around them; the others see no difference."""
    files = " ".join(f"tests/test_{name}.py" for name in ("host", "lock", "dotenv", "visible"))
    # The copy is no git repository, of which one asks for its files.
    done = checkout.run("make", "test", f"ARGS=-q {files} -k 'not stand_in_the_table'")
    assert done.code == 0, done.said


def test_the_docker_commands_of_the_page(checkout) -> None:
    """Compose alone, without make and without saying who one is: the runs' owner is."""
    lines = [
        line
        for line in commands((ROOT / "docs" / "container.md").read_text())
        if line.startswith("docker ")
    ]
    done = []
    # Compose's own, for other tests make networks of theirs meanwhile.
    compose_networks = ["network", "ls", "--quiet", "--filter", "label=com.docker.compose.project"]
    networks = docker(*compose_networks)
    for line in lines:
        outcome = checkout.run("sh", "-c", line, TENSORBOARD_PORT=str(PORT))
        if "gpu.yml" in line and not shutil.which("nvidia-smi"):
            assert "could not select device driver" in outcome.said
            continue
        assert outcome.code == 0, f"{line}\n{outcome.said}"
        newest = max((checkout.path / "runs/digits").iterdir()).name
        if line == "docker compose run --rm train":  # the whole of it
            result = checkout.read(f"runs/digits/{newest}/result.json")
            assert result["weights_sha256"] == stated_hash()
        if "evaluate" in line:
            assert newest in outcome.json()["checkpoint"]
        if "tensorboard" in line:
            serves(checkout)
        done.append(line)
    assert len(done) >= 4
    words = ["docker", "compose", "run", "--rm", "evaluate", "--run", "runs/first"]
    named = checkout.run(*words)
    assert named.code == 0, named.said
    assert named.json()["checkpoint"].startswith("runs/first/")
    assert docker(*compose_networks) == networks  # an engine has room for thirty
    assert len(list((checkout.path / "runs/digits").iterdir())) == 2
    assert {p.stat().st_uid for p in (checkout.path / "runs").rglob("*")} == {checkout.uid}
    named = checkout.run("docker", "compose", "run", "--rm", "evaluate", RUN="runs/first")
    assert named.json()["checkpoint"].startswith("runs/first/")


def serves(checkout: Checkout) -> None:
    """TensorBoard becomes healthy, shows the runs' scalars, and is bound to this machine alone."""
    (name,) = checkout.containers()
    try:
        health = ""
        for _ in range(120):
            health = docker("inspect", "--format", "{{.State.Health.Status}}", name).strip()
            if health == "healthy":
                break
            time.sleep(0.5)
        assert health == "healthy"
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/data/plugin/scalars/tags") as page:
            tags = json.load(page)
        assert any(run.startswith("first") for run in tags)
        assert set(re.findall(r"-> (.*):", docker("port", name))) == {"127.0.0.1"}
    finally:
        docker("rm", "--force", name)


def test_clean_touches_what_is_ours_and_nothing_else(checkout) -> None:
    """Containers of this checkout go; those of others stay, and images that they use."""
    other = docker("run", "--detach", "--rm", "lockstep:cuda13", "sleep", "300").strip()
    started = checkout.run("docker", "compose", "run", "--detach", "train", "sleep", "300")
    assert started.code == 0, started.said
    assert checkout.containers()
    try:
        done = checkout.run("make", "clean")
        assert done.code == 0, done.said
        assert not checkout.containers("--all")
        assert docker("inspect", "--format", "{{.State.Running}}", other).strip() == "true"
        assert "cuda13" in docker("images", "--format", "{{.Tag}}", "lockstep")
        assert (checkout.path / "runs/first/result.json").exists()
    finally:
        docker("rm", "--force", other)
