"""Machines that are harmed while they train: the bits of one, or one line that names the culprit.

FAULTS=60 of them in `make test-nodes`, 12 in CI: several in a run, each while it trains.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, stated_hash
from nodes.machines import Training, lose, needs_network, shifted_clock, trainer, training

pytestmark = [pytest.mark.slow, needs_network, pytest.mark.timeout(900)]
A_RUN = 3
RUNS = int(os.environ.get("FAULTS", "12")) // A_RUN
KINDS = ("trainer", "agent", "machine", "paused", "cut", "deaf", "asked", "cut long")


def harm(trained: Training, kind: str, number: int) -> None:
    """Bring a machine to harm; it is there again afterwards."""
    net, node = trained.net, trained.net.nodes[number]
    if kind == "trainer":
        with suppress(StopIteration, psutil.Error):  # between two rounds there is none
            trainer(node).kill()
    elif kind == "agent":
        for process in node.part("train.nodes"):
            process.kill()
        node.process.wait(60)
        trained.start(number)
    elif kind == "machine":
        lose(node)
        time.sleep(3)
        trained.start(number)
    elif kind == "paused":
        node.signal(signal.SIGSTOP)
        time.sleep(5)
        node.signal(signal.SIGCONT)
    elif kind in ("cut", "deaf", "cut long"):
        if kind == "deaf":
            net.deaf(number, True)
        else:
            net.plug(number, into=False)
        time.sleep(30 if kind == "cut long" else 8)
        if kind == "deaf":
            net.deaf(number, False)
        else:
            net.plug(number, into=True)
        code = node.code(40) if kind == "cut long" else None
        if code == 0:  # the training came to its end meanwhile
            return
        if code is not None:  # it gave up; while it waits for the others to start, it may not
            assert code == 6, trained.said()
            assert "node 0 " in node.error(), trained.said()
            trained.start(number)
    elif kind == "asked":  # as before a spot machine is taken away
        node.part("train.launch")[-1].terminate()
        assert node.code(60) == 75, trained.said()
        trained.start(number)


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_faults_end_in_the_same_bits(tmp_path, seed) -> None:
    chance = random.Random(seed)
    count = chance.choice((2, 3, 4))
    words = ("--checkpoint.every", 20, "--log.every", 4)
    with training(count, tmp_path, least=1, words=words) as trained:
        trained.start_all()
        done, step = [], 0
        while len(done) < A_RUN:
            step = min(trained.step() + chance.randint(8, 30), 440)
            if not trained.reaches(step):
                break
            kind, number = chance.choice(KINDS), chance.randrange(1, count)
            began = time.monotonic()
            harm(trained, kind, number)
            done.append(f"{kind} of {number} at step {step}: {time.monotonic() - began:.0f} s")
        codes = trained.codes(300)
        print(count, "machines;", "; ".join(done))
        assert codes[0] == 0, trained.said()
        assert trained.weights() == stated_hash()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_lost_machine_is_done_without_and_comes_again(tmp_path, number) -> None:
    """Of three, two train, as eight lanes cannot be shared by three; then all four again."""
    words = ("--checkpoint.every", 20, "--log.every", 4)
    with training(4, tmp_path, least=2, words=words) as trained:
        trained.start_all()
        assert trained.reaches(40), trained.said()
        lose(trained.net.nodes[number])
        before = trained.step()
        assert trained.reaches(before + 30), trained.said()
        trained.start(number)
        assert trained.codes() == [0, 0, 0, 0], trained.said()
        said = trained.net.nodes[0].said()
        left = ", ".join(str(n) for n in range(4) if n != number)
        assert f"round of nodes {left}\n" in said, said
        assert "processes share the 8 lanes" not in said, said  # three do, as 3+3+2
        assert trained.weights() == stated_hash()


@pytest.mark.parametrize("what", ["code", "knob", "clock"])
def test_one_that_comes_again_as_another_is_refused_and_the_others_go_on(tmp_path, what) -> None:
    words = ("--checkpoint.every", 20, "--log.every", 4)
    with training(2, tmp_path, least=1, words=words) as trained:
        trained.start_all()
        assert trained.reaches(30), trained.said()
        lose(trained.net.nodes[1])
        if what == "code":
            other = tmp_path / "other"
            for name in ("host", "train", "configs", "requirements"):
                shutil.copytree(ROOT / name, other / name)
            with (other / "train/loop.py").open("a") as file:
                file.write("# another line\n")
            again, says = trained.start(1, cwd=other), "code train/loop.py is "
        elif what == "knob":
            again, says = trained.start(1, "--optim.lr", "0.3"), "optim.lr is 0.3, and 0.1 on"
        else:
            again = trained.start(1, LD_PRELOAD=str(shifted_clock(tmp_path)))
            says = "the clock of node 1 (node1, 10.77.0.2) is 3,60"
        began = time.monotonic()
        assert again.code(60) in (2, 6), trained.said()
        print(f"{what}: refused after {time.monotonic() - began:.1f} s")
        assert says in again.error(), trained.said()
        assert trained.net.nodes[0].code(200) == 0, trained.said()
        assert trained.weights() == stated_hash()


def test_where_the_first_machine_is_lost_one_command_goes_on(tmp_path) -> None:
    with training(3, tmp_path, least=1, words=("--checkpoint.every", 20)) as trained:
        trained.start_all()
        assert trained.reaches(30), trained.said()
        lose(trained.net.nodes[0])
        for number in (1, 2):
            assert trained.net.nodes[number].code(120) == 6, trained.said()
            assert "node 0 (node0, 10.77.0.1) " in trained.net.nodes[number].error()
        trained.start_all()
        assert trained.codes() == [0, 0, 0], trained.said()
        assert trained.weights() == stated_hash()


def steps(run: Path) -> int:
    """How many are traced."""
    return int((run / "trace.csv").read_text().splitlines()[-1].split(",")[0])


@pytest.mark.parametrize("kind", ["trainer", "agent", "machine", "cut", "paused", "deaf", "asked"])
def test_who_is_lost_is_named_where_all_are_needed(tmp_path, kind) -> None:
    with training(2, tmp_path) as trained:
        trained.start_all()
        assert trained.reaches(30), trained.said()
        node, began = trained.net.nodes[1], time.monotonic()
        if kind == "trainer":
            trainer(node).kill()
        elif kind == "agent":
            for process in node.part("train.nodes"):
                process.kill()
        elif kind == "machine":
            trained.net.plug(1, into=False)
            node.signal(signal.SIGKILL)
        elif kind == "cut":
            trained.net.plug(1, into=False)
        elif kind == "deaf":
            trained.net.deaf(1, True)
        elif kind == "paused":
            node.signal(signal.SIGSTOP)
        else:
            node.part("train.launch")[-1].terminate()
        code = trained.net.nodes[0].code(100)
        print(f"{kind}: code {code} after {time.monotonic() - began:.1f} s")
        error = trained.net.nodes[0].error()
        if kind in ("agent", "asked"):  # its trainers were told to stop, and all have saved
            assert code == 75, trained.said()
        else:
            assert code == 6, trained.said()
            assert "node 1 (node1, 10.77.0.2)" in error, trained.said()
        if kind in ("trainer", "machine", "cut", "paused"):  # and what node 0 held is saved
            newest = (trained.run / "checkpoints/latest").readlink().name
            assert int(newest.removeprefix("step-")) == steps(trained.run), trained.said()
        if kind in ("machine", "cut", "paused"):
            assert re.search(r"\), process 1, has not .* wait at step \d+, in (the sum|an)", error)


def test_a_slow_machine_is_named(tmp_path) -> None:
    """It stands still for more than half of the time, as under another program's load."""
    with training(2, tmp_path, words=("--epochs", 100, "--log.every", 5)) as trained:
        trained.start_all()
        assert trained.reaches(20), trained.said()
        slow, begun = trainer(trained.net.nodes[1]), time.monotonic()
        while "all wait for it" not in trained.said() and time.monotonic() - begun < 100:
            slow.suspend()
            time.sleep(0.05)
            slow.resume()
            time.sleep(0.03)
        said = trained.said()
        assert re.search(r"warning: process 1 of node1 takes \d+ % longer for its part", said), said
        rows = [json.loads(row) for row in (trained.run / "metrics.jsonl").read_text().splitlines()]
        last = [row["processes"] for row in rows if row["kind"] == "health"][-1]
        assert [row["host"] for row in last] == ["node0", "node1"]


def test_a_full_disk_on_one_machine_is_named(tmp_path) -> None:
    """The first machine writes; a quota of the file system would say the same."""
    with training(2, tmp_path) as trained:
        with suppress(psutil.Error):
            trained.start(0, cwd=ROOT)
        trained.start(1)
        assert trained.reaches(20), trained.said()
        for process in trained.net.nodes[0].part("-m train fit"):
            with suppress(psutil.Error):
                psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (2000, 2000))
        assert trained.codes() == [4, 4], trained.said()
        assert "File too large" in trained.errors()[0]
        assert "node 0 (node0, 10.77.0.1) ended: " in trained.errors()[1]
