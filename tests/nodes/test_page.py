"""The commands of docs/nodes.md, on two machines."""

import json
import os
import shlex
import subprocess

import pytest
from conftest import ROOT, commands, stated_hash
from nodes.machines import needs_network
from nodes.net import FIRST, network

pytestmark = [pytest.mark.slow, needs_network]
EVERY = commands((ROOT / "docs/nodes.md").read_text())
LINES = [line for line in EVERY if "NODES=" in line]


def test_the_page_has_pairs_of_commands() -> None:
    assert len(LINES) == 4
    assert [line for line in EVERY if line not in LINES] == ["make scaling RUN=runs/both"]
    for first, second in zip(LINES[::2], LINES[1::2], strict=True):
        assert second == first.replace("NODE_RANK=0", "NODE_RANK=1")


@pytest.mark.parametrize("pair", [0, 2])
def test_the_commands_of_the_page_run(local_copy, tmp_path, pair) -> None:
    assert not os.environ.get("NODES")
    with network(2) as net:
        for number, line in enumerate(LINES[pair : pair + 2]):
            words = [*shlex.split(line.replace("10.0.0.1", FIRST)), "ENGINE=local"]
            net.start(number, tmp_path, words, {}, local_copy)
        codes = [net.nodes[number].code(200) for number in (0, 1)]
        said = net.nodes[0].said() + net.nodes[1].said()
        assert codes == [0, 0], said
    (result,) = local_copy.glob("runs/*/result.json")
    assert json.loads(result.read_text())["weights_sha256"] == stated_hash()
    if "RUN=runs/both " in LINES[pair]:
        words = ["make", "scaling", "RUN=runs/both", "ENGINE=local"]
        told = subprocess.run(words, cwd=local_copy, capture_output=True, text=True, check=True)
        assert "measured" in told.stdout
        assert "A model, not a measurement, of 1 process a machine" in told.stdout
