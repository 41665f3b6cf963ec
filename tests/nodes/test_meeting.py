"""Machines that meet: the same bits as one, or one line of who is missing or what differs."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import DIGITS, ROOT, stated_hash
from nodes.machines import PYTHON, Training, needs_network, shifted_clock, training

from train.runs import scaling

RESNET = ("--model.name", "resnet18", "--data.channels", 3)
FAST = ("--reproducibility", "fast")
pytestmark = [pytest.mark.slow, needs_network]


@pytest.mark.parametrize(("count", "own_disks"), [(2, True), (4, False)])
def test_several_machines_end_in_the_bits_of_one(tmp_path, count, own_disks) -> None:
    with training(count, tmp_path, own_disks=own_disks) as trained:
        trained.start_all()
        assert trained.codes() == [0] * count, trained.said()
        assert trained.weights() == stated_hash()
        assert "links: " in trained.net.nodes[0].said()


def test_a_run_that_only_the_first_machine_has_goes_on(tmp_path) -> None:
    with training(2, tmp_path, own_disks=True) as trained:
        trained.start_all()
        assert trained.reaches(45)
        trained.net.nodes[1].part("train.launch")[-1].terminate()
        assert trained.codes() == [75, 75], trained.said()
        trained.start_all()
        assert trained.codes() == [0, 0], trained.said()
        assert "to node1" in trained.net.nodes[0].said()
        assert trained.weights() == stated_hash()


@pytest.mark.parametrize("level", ["lockstep", "deterministic"])
def test_what_two_machines_trained_is_reproduced_on_one(tmp_path, level) -> None:
    """By `reproduce` on one machine, and by the same training again on two."""
    words = ("--max_steps", 24, "--reproducibility", level)
    with training(2, tmp_path, words=words) as trained:
        trained.start_all()
        assert trained.codes() == [0, 0], trained.said()
        weights, first = trained.weights(), trained.runs / "first"
        trained.run.rename(first)
        trained.start_all()
        assert trained.codes() == [0, 0], trained.said()
        assert trained.weights() == weights
    for line in (["reproduce", first], ["compare", first, trained.run]):
        done = subprocess.run(
            [PYTHON, "-m", "train", *map(str, line)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def refused(trained: Training, *parts: str, code: int) -> None:
    """All machines end with the same line."""
    began = time.monotonic()
    codes = trained.codes()
    assert codes == [code] * trained.net.count, trained.said()
    print(f"refused {time.monotonic() - began:.1f} s after the last start")
    for error in trained.errors():
        for part in parts:
            assert part in error, trained.said()
    assert "Traceback" not in trained.said()
    assert not list(trained.runs.glob("**/checkpoints/step-*"))


@pytest.mark.parametrize("what", ["code", "lock", "knob", "precision", "processes", "capability"])
def test_another_machine_is_refused_by_name(tmp_path, what) -> None:
    cwd, words, environ, says, code = ROOT, (), {}, what, 2
    if what in ("code", "lock"):
        cwd = tmp_path / "other"
        for name in ("host", "train", "configs", "requirements"):
            shutil.copytree(ROOT / name, cwd / name)
        if what == "code":
            with (cwd / "train/loop.py").open("a") as file:
                file.write("# another line\n")
            says = "code train/loop.py is "
        else:
            with (cwd / "requirements/cuda13.txt").open("a") as file:
                file.write("# another line\n")
            says = "the lock is another"
        code = 6
    elif what == "knob":
        words, says = ("--optim.lr", "0.3"), "optim.lr is 0.3, and 0.1 on the first"
    elif what == "precision":
        environ, says = {"PRECISION": "bf16"}, "PRECISION: bf16 on node 1 (node1, 10.77.0.2)"
    elif what == "processes":
        environ, says = {"CPUS": "2"}, "processes a node: 2 on node 1 (node1, 10.77.0.2)"
    else:
        environ = {"ATEN_CPU_CAPABILITY": "default"}
        says, code = "variable ATEN_CPU_CAPABILITY is default there", 6
    native = ("--numerics", "native") if what in ("precision", "capability") else ()
    with training(2, tmp_path, words=native) as trained:
        trained.start(0)
        trained.start(1, *words, cwd=cwd, **environ)
        refused(trained, "node 1 (node1, 10.77.0.2)", says, code=code)


NETWORKS = {
    "1gbit": ("--max_steps", 12, "--log.every", 2, "--numerics", "native", *RESNET),
    "50 ms": ("--max_steps", 40, "--log.every", 5),
}


@pytest.mark.alone
@pytest.mark.parametrize("name", NETWORKS)
def test_slow_networks_and_what_the_model_says(tmp_path, name) -> None:
    """The bits of one machine, and how long the machines wait for each other is foretold."""
    far, words = name == "50 ms", NETWORKS[name]
    line = [*DIGITS, *words, "--log.report", "false", "--run", tmp_path / "one"]
    subprocess.run([PYTHON, "-m", "train", "fit", *map(str, line)], cwd=ROOT, check=True)
    one = json.loads((tmp_path / "one/result.json").read_text())["weights_sha256"]
    with training(2, tmp_path, delay=0.025 if far else 0.0, words=words) as trained:
        for number in range(0 if far else 2):
            trained.net.slow(number, name)
        trained.start_all()
        assert trained.codes() == [0, 0], trained.said()
        assert trained.weights() == one
        run = scaling.measured(trained.run)
        assert run.link is not None
        foretold = run.work.communication(2, run.link)
        print(f"{name}: {run.link}: a step takes {run.step:.4f} s")
        print(f"of it {run.communication:.4f} s wait; foretold {foretold:.4f} s")
        if far:
            assert 0.05 < run.link.delay < 0.06
        else:
            assert 0.8e8 < run.link.rate < 1.3e8
        # Two busy cores add a little; that a way is taken twice would add as much again.
        assert 0.6 < foretold / run.communication < 1.5


def test_other_data_is_refused_by_name(tmp_path) -> None:
    from conftest import picture

    for host, value in (("first", 200), ("second", 201)):
        for split, count in (("train", 16), ("validation", 4)):
            for kind, grey in (("dark", 60), ("light", value)):
                for number in range(count):
                    picture(tmp_path / host / split / kind / f"{number}.png", grey)
    words = ("--data.source", "folder", "--batch_size", 16, "--lanes", 2)
    with training(2, tmp_path, words=words) as trained:
        trained.start(0, "--data.root", tmp_path / "first")
        trained.start(1, "--data.root", tmp_path / "second")
        refused(trained, "process 1 on node1 has other data than process 0", code=3)


def test_a_clock_that_is_off_is_refused(tmp_path) -> None:
    with training(2, tmp_path) as trained:
        trained.start(0)
        trained.start(1, LD_PRELOAD=str(shifted_clock(tmp_path)))
        refused(trained, "the clock of node 1 (node1, 10.77.0.2) is 3,60", code=6)


def test_of_machines_that_may_come_later_one_does_not_wait_for_long(tmp_path) -> None:
    with training(2, tmp_path, least=1, words=("--max_steps", 10)) as trained:
        trained.start(0, NODE_WAIT="4")
        assert trained.net.nodes[0].code(120) == 0, trained.said()


def test_machines_that_never_come_are_named(tmp_path) -> None:
    with training(4, tmp_path) as trained:
        trained.start(0, NODE_WAIT="12")
        trained.start(1, NODE_WAIT="30")
        for number in (0, 1):
            assert trained.net.nodes[number].code(90) == 6, trained.said()
            error = trained.net.nodes[number].error()
            assert "nodes 2, 3 of 4 have not come to 10.77.0.1:29500 in 12 s" in error
        assert "waiting for nodes 2, 3 of 4, " in trained.net.nodes[0].said()


def test_a_first_machine_that_is_switched_off_meanwhile_is_named(tmp_path) -> None:
    with training(4, tmp_path) as trained:
        trained.start(0)
        trained.start(1)
        deadline = time.monotonic() + 60
        while "waiting for nodes 2, 3 of 4" not in trained.net.nodes[1].said():
            assert time.monotonic() < deadline, trained.said()
            time.sleep(0.1)
        trained.net.plug(0, into=False)
        assert trained.net.nodes[1].code(60) == 6, trained.said()
        error = trained.net.nodes[1].error()
        assert "node 0 at 10.77.0.1:29500 is gone: no answer in 16 s" in error


@pytest.mark.parametrize(
    ("address", "first", "second"),
    [
        ("10.77.0.9", "MASTER_ADDR=10.77.0.9 does not lead to this machine", "has not reached"),
        ("10.77.0.2", "one of this machine's on all nodes (10.77.0.1", "nobody listens there yet"),
        ("no-such-host.invalid", "has no address", "has no address"),
    ],
)
def test_a_wrong_address_is_named(tmp_path, address, first, second) -> None:
    with training(2, tmp_path) as trained:
        for number in (0, 1):
            trained.start(number, MASTER_ADDR=address, NODE_WAIT="8")
        assert trained.codes(90) == [6, 6], trained.said()
        assert first in trained.errors()[0]
        assert second in trained.errors()[1]


def test_a_name_that_is_known_only_later(tmp_path) -> None:
    """As that of a pod of Kubernetes, some seconds after it has started."""
    with training(2, tmp_path, words=("--max_steps", "2")) as trained:
        places = [Path("/etc/netns") / f"{trained.net.name}-{number}" for number in (0, 1)]
        for place in places:
            place.mkdir(parents=True)
            (place / "hosts").write_text("127.0.0.1 localhost\n")
        try:
            for number in (0, 1):
                trained.start(number, MASTER_ADDR="first.pods")
            for number in (0, 1):
                while "first.pods has no address" not in trained.net.nodes[number].said():
                    assert trained.net.nodes[number].code(0.1) is None, trained.said()
            for place in places:
                with (place / "hosts").open("a") as hosts:
                    hosts.write("10.77.0.1 first.pods\n")
            assert trained.codes() == [0, 0], trained.said()
        finally:
            for place in places:
                shutil.rmtree(place)


def test_a_firewall_that_lets_the_port_through_and_not_the_data(tmp_path) -> None:
    with training(2, tmp_path) as trained:
        accept = "-A INPUT -p tcp -i eth0 --dport 29500 -j ACCEPT"
        established = "-A INPUT -i eth0 -m conntrack --ctstate ESTABLISHED -j ACCEPT"
        trained.net.rules(0, accept, established, "-A INPUT -i eth0 -j DROP")
        trained.start_all()
        refused(
            trained,
            "node 1 (node1, 10.77.0.2) does not reach node 0 (node0, 10.77.0.1), port ",
            "no answer → let the nodes reach each other on all TCP ports",
            code=6,
        )


def test_two_machines_of_one_number(tmp_path) -> None:
    with training(4, tmp_path) as trained:
        trained.start(0)
        trained.start(1)
        trained.start(2, NODE_RANK="1")
        trained.start(3, NODE_RANK="0")
        assert trained.net.nodes[3].code(60) == 6, trained.said()
        other = "MASTER_ADDR=10.77.0.1 does not lead to this machine, which is node 0: "
        assert other in trained.net.nodes[3].error()
        assert "or another NODE_RANK here" in trained.net.nodes[3].error()
        codes = {trained.net.nodes[number].code(60) for number in (0, 1, 2)}
        assert codes == {2}, trained.said()
        assert "two machines say that they are node 1: node" in trained.net.nodes[0].error()


def test_one_that_is_stopped_while_it_waits_is_replaced_by_another(tmp_path) -> None:
    """As a pod that is evicted: the new one has its name, its number and another address."""
    with training(5, tmp_path, words=("--max_steps", "2")) as trained:
        told = {"NODES": "4"}
        trained.start(0, **told)
        gone = trained.start(1, **told)
        while "waiting for node" not in gone.said():
            assert gone.code(0.1) is None, trained.said()
        time.sleep(2)
        gone.part("train.launch")[-1].terminate()
        assert gone.code(60) == 75, trained.said()
        trained.start(4, NODE_RANK="1", **told)
        for number in (2, 3):
            trained.start(number, **told)
        codes = [trained.net.nodes[number].code(120) for number in (0, 2, 3, 4)]
        assert codes == [0, 0, 0, 0], trained.said()


def test_a_port_that_is_taken(tmp_path) -> None:
    with training(2, tmp_path) as trained:
        listen = "import socket, time; s = socket.create_server(('', 29500)); time.sleep(100)"
        other = trained.net.start(0, tmp_path, ["python3", "-c", listen], os.environ)
        time.sleep(1)
        node = trained.start(0)
        assert node.code(60) == 6
        assert "port 29500 cannot be used on node 0: Address already in use" in node.error()
        other.process.kill()
        other.process.wait()


def test_a_slow_link_is_measured(tmp_path) -> None:
    with training(3, tmp_path, words=("--max_steps", 4)) as trained:
        trained.net.slow(2, "50mbit")
        trained.start_all("--numerics", "native", "--lanes", 3, "--batch_size", 96, *FAST)
        trained.codes()
        said = trained.net.nodes[0].said()
        assert "warning: node 2 (node2, 10.77.0.3) to node " in said, said
        assert " does 4" in said or " does 5" in said
