"""A container that is stopped saves, says 75 and goes on; one that is killed goes on as well."""

import json
import os
import signal
import subprocess
import time

import pytest
from checkouts import Checkout, docker
from fault.harness import finish

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

WORDS = ("fit", "--config", "configs/digits.yaml", "--checkpoint.every", "10", "--log.every", "1")
# 180 steps: the container is told to stop after twenty.
LENGTH = ("--epochs", "16")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> str:
    """The weights that the local environment ends with."""
    run = finish(tmp_path_factory.mktemp("reference"), [*WORDS, *LENGTH])
    return str(json.loads((run / "result.json").read_text())["weights_sha256"])


def training(
    checkout: Checkout, run: str, cpus: str, *more: str
) -> tuple[str, subprocess.Popen[str]]:
    """A run in its own container that has passed step 20, and the command that waits for it."""
    words = ("docker", "compose", "run", "--rm", "train", *WORDS, "--run", run, *more)
    process = checkout.start(*words, CPUS=cpus)
    wait_for(checkout, run, process)
    (name,) = checkout.containers()
    return name, process


def wait_for(checkout: Checkout, run: str, process: subprocess.Popen[str]) -> None:
    metrics = checkout.path / run / "metrics.jsonl"
    until = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 20):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("cpus", ["1", "2"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_run_goes_on_after_docker_stop_and_docker_kill(checkout, reference, how, cpus) -> None:
    run = f"runs/{how}-{cpus}"
    name, process = training(checkout, run, cpus, *LENGTH)
    started = time.monotonic()
    docker(how, name)
    said, _ = process.communicate(timeout=60)
    if how == "stop":
        assert process.returncode == 75, said
        assert time.monotonic() - started < 100  # the grace period is 120 s
        assert checkout.read(f"{run}/result.json")["status"] == "stopped"
        assert f"→ to go on: make train RUN={run} ARGS=--resume" in said
    else:
        assert process.returncode == 137, said
    words = ("docker", "compose", "run", "--rm", "train", *WORDS, *LENGTH, "--run", run)
    again = checkout.run(*words, "--resume", CPUS=cpus)
    assert again.code == 0, again.said
    assert "going on after step" in again.said
    assert checkout.read(f"{run}/result.json")["weights_sha256"] == reference


def test_a_container_that_was_left_alone_is_named(checkout) -> None:
    """kill -9 of make leaves it training; who starts again is told how to stop it."""
    run = "runs/alone"
    words = ("make", "train", f"RUN={run}", f"ARGS={' '.join(WORDS[3:])}")
    process = checkout.start(*words, ENGINE="docker", CPUS="1")
    wait_for(checkout, run, process)
    (known,) = checkout.containers()
    name = docker("inspect", "--format", "{{.Name}}", known).strip().lstrip("/")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = checkout.run(*words, ENGINE="docker", CPUS="1")
    assert again.code == 2
    assert f"{run} is being written by the container {name} on " in again.said
    assert f"docker stop {name}" in again.said
    assert checkout.containers() == [known]
    docker("stop", name)
    process.communicate(timeout=60)  # Compose, which outlives make, has its output
    assert checkout.read(f"{run}/result.json")["status"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_make_reaches_the_trainer(checkout, number) -> None:
    """What a scheduler, systemd or a closing terminal sends to the command in the foreground."""
    run = f"runs/{number.name}"
    words = " ".join(WORDS[3:])
    process = checkout.start("make", "train", "CPUS=1", f"RUN={run}", f"ARGS={words}")
    wait_for(checkout, run, process)
    if number == signal.SIGTERM:
        process.send_signal(number)
    else:  # as a terminal sends them
        os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=100)
    assert checkout.read(f"{run}/run.json")["exit_code"] == 75, said
    assert checkout.read(f"{run}/result.json")["status"] == "stopped"
    assert not checkout.containers("--all")


def test_memory_for_loaders_is_enough(checkout) -> None:
    """Loader processes hand samples over in /dev/shm, of which containers have 64 MB by default."""
    done = checkout.run(
        "docker",
        "compose",
        "run",
        "--rm",
        "train",
        "sh",
        "-c",
        "df --output=size -m /dev/shm | tail -n 1",
    )
    assert int(done.said.split()[-1]) >= 8000
    loaders = checkout.run(
        "docker", "compose", "run", "--rm", "train", *WORDS, "--max_steps", "20", "--data.workers", "2",
        "--run", "runs/loaders",
    )  # fmt: skip
    assert loaders.code == 0, loaders.said


def test_the_init_process_collects_and_the_trainer_is_not_it(checkout) -> None:
    done = checkout.run("docker", "compose", "run", "--rm", "train", "cat", "/proc/1/comm")
    assert "init" in done.said.splitlines()[-1]
