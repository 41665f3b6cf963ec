"""The commands of docs/nodes.md, on two machines."""

import json
import os
import shlex

import pytest
from conftest import ROOT, commands, stated_hash
from nodes.machines import needs_network
from nodes.net import FIRST, network

pytestmark = [pytest.mark.slow, needs_network]
LINES = commands((ROOT / "docs/nodes.md").read_text())


def test_the_page_has_pairs_of_commands() -> None:
    assert len(LINES) == 4
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
