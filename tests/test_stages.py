"""A model cut into stages, one on each process: the bits of one process that holds it all."""

import json
from pathlib import Path
from typing import Any

import pytest
from fault.harness import FSDP, assert_same_run, start
from test_sharded import BF16, CASES, PARTS, WORDS

from host import stages as asked
from host.errors import UsageError


def ended(home: Path, words: list[Any], told: str = "", **variables: str) -> Path:
    """A run, in the stages that STAGES says, to its end."""
    world = asked.asked({"STAGES": told})
    count = world.count if world else 1
    told_all = {"STAGES": told, **variables}
    every = dict.fromkeys(range(count), told_all)
    words = [*words, "--run", home / "run", "--resume"]
    attempt = start(home / "log", count, words, None, every)
    assert attempt.wait(240) == [0] * count, attempt.output()
    return home / "run"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_stages_end_in_the_bits_of_one_process(tmp_path, name) -> None:
    words = [*WORDS, *CASES[name]]
    usual = ended(tmp_path / "one", words)
    for told in ("2", "4") if name in ("resnet18", "vit") else ("2",):
        run = ended(tmp_path / told, words, told)
        assert_same_run(run, usual)
        assert json.loads((run / "run.json").read_text())["hardware"]["stages"] == int(told)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch norm, clipping", "vit"])  # BF16's convolutions are slow
def test_in_bf16_as_well(tmp_path, name) -> None:
    words = [*WORDS, "--numerics", "native", *CASES[name], "--max_steps", 2]
    one, two = ended(tmp_path / "one", words, **BF16), ended(tmp_path / "two", words, "2", **BF16)
    assert_same_run(two, one)
    assert json.loads((two / "run.json").read_text())["hardware"]["mixed_precision"] == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_with_activations_computed_again(tmp_path, name) -> None:
    words = [*WORDS, *CASES[name], "--max_steps", 2]
    again = [*words, "--model.activation_checkpointing", "true"]
    assert_same_run(ended(tmp_path / "again", again, "2"), ended(tmp_path / "usual", words))


@pytest.mark.slow
def test_where_it_is_cut_may_be_said(tmp_path) -> None:
    words = [*WORDS, *CASES["resnet18"]]
    usual = ended(tmp_path / "one", words)
    assert_same_run(ended(tmp_path / "three", words, "layer2,layer4"), usual)
    every = {rank: {"STAGES": "layer2.0.bn2"} for rank in range(2)}
    attempt = start(tmp_path / "log", 2, [*words, "--run", tmp_path / "run"], None, every)
    assert attempt.wait(240) == [2, 2]
    assert (
        "STAGES: the model cannot be cut at layer2.0.bn2, which is not given all that is needed of"
        " what comes before it → name another module, such as bn1, relu, maxpool, layer1"
    ) in attempt.output()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [("2", ""), ("", "4"), ("4", "2"), ("fsdp", "2"), ("2", "fsdp")],
    ids=["stages, then one", "one, then stages", "four, then two", "shards, then stages", "back"],
)
def test_killed_it_goes_on_in_another_way(tmp_path, before, after) -> None:
    """Killed in the middle of step 9, it goes on from step 7 or 5."""
    knobs = ["--optim.ema", 0.9, "--optim.clip", 0.3]
    usual = ended(tmp_path / "whole", [*WORDS, *knobs])
    words = [*WORDS, *knobs, "--run", tmp_path / "run", "--resume"]

    def attempt(home: Path, way: str, strikes: Any = None) -> Any:
        count = 2 if way == "fsdp" else int(way or 1)
        told = FSDP if way == "fsdp" else {"STAGES": way}
        return start(home, count, words, strikes, dict.fromkeys(range(count), told)), count

    at = {"at": "lane", "count": 9 * (4 if before == "fsdp" else 8), "signal": 9}
    broken, _ = attempt(tmp_path / "0", before, {0: at})
    assert -9 in broken.wait(120), broken.output()
    if before.isdecimal():
        files = {path.name for path in (tmp_path / "run/checkpoints/latest").iterdir()}
        parts = {f"{n}.{part}of{before}.safetensors" for n in PARTS for part in range(int(before))}
        assert files == {"SHA256SUMS", "state.json", *parts}
    again, count = attempt(tmp_path / "1", after)
    assert again.wait(240) == [0] * count, again.output()
    assert "going on after step" in again.output()
    assert_same_run(tmp_path / "run", usual)


@pytest.mark.parametrize(
    ("said", "count", "names"),
    [
        ("", 0, ()),
        ("1", 0, ()),
        ("2", 2, ()),
        ("layer2", 2, ("layer2",)),
        ("a, b.1", 3, ("a", "b.1")),
    ],
)
def test_what_stages_says(said, count, names) -> None:
    found = asked.asked({"STAGES": said})
    assert (found.count, found.names) == (count, names) if found else count == 0


@pytest.mark.parametrize("said", ["0", "-2", "a,,b", "a,a", ","])
def test_what_stages_cannot_say(said) -> None:
    with pytest.raises(UsageError, match="is neither a number nor names of modules"):
        asked.asked({"STAGES": said})
