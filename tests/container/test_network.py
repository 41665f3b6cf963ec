"""Two and four machines as containers of a Docker network: the bits of one."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import stated_hash

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("count", [2, 4])
def test_containers_end_in_the_bits_of_one(checkout, count) -> None:
    name = f"lockstep-nodes-{count}"
    docker("network", "create", "--subnet", f"10.78.{count}.0/24", name)
    run = f"runs/nodes{count}"
    try:

        def node(number: int):
            words = ["docker", "compose", "run", "--rm", "--name", f"{name}-{number}", "train"]
            words += ["fit", "--config", "configs/digits.yaml", "--run", run]
            # The first address of the network is the engine's.
            told = {"NODES": str(count), "NODE_RANK": str(number), "CPUS": "1", "NETWORK": name}
            return checkout.run(*words, MASTER_ADDR=f"{name}-0", NODE_WAIT="120", **told)

        with ThreadPoolExecutor(count) as machines:
            done = list(machines.map(node, range(count)))
    finally:
        docker("network", "rm", "--force", name)
    assert [each.code for each in done] == [0] * count, "\n---\n".join(e.said for e in done)
    assert checkout.read(f"{run}/result.json")["weights_sha256"] == stated_hash()


def test_make_takes_the_host_s_network(checkout) -> None:
    """And says so to Compose; what is printed is what is run."""
    told = {"NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.255.255.1", "NODE_WAIT": "1"}
    words = [f"{name}={value}" for name, value in told.items()]
    done = checkout.run("make", "train", "CPUS=1", "DOCTOR=0", *words)
    assert (done.code, "Error 6" in done.said) == (2, True), done.said  # make's own, and ours
    assert "NETWORK=host" in done.said
    assert "MASTER_ADDR=10.255.255.1 does not lead to this machine, which is node 0" in done.said
