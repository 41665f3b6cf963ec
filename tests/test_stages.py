"""A model cut into stages, one on each process: the bits of one process that holds it all."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fault.harness import FSDP, assert_same_run, start
from test_sharded import BF16, CASES, PARTS, WORDS

from host import stages as asked
from host.errors import UsageError
from train.config import Config


def ended(home: Path, words: list[Any], told: str = "", copies: int = 1, **variables: str) -> Path:
    """A run, of so many copies of a model in the stages that STAGES says, to its end."""
    world = asked.asked({"STAGES": told})
    count = copies * world.count if world else 1
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


# As many lanes for each copy, and 3, 3 and 2 of them; a last step that leaves a copy without any.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told", "copies"),
    [
        ("batch norm, clipping", "2", 2),
        ("adamw, clipping", "2", 3),
        ("dropout, average of the weights", "2", 3),
        ("a last batch for five of the lanes", "2", 4),
        ("resnet18", "layer2,layer4", 2),
        ("vit", "2", 2),
    ],
)
def test_copies_of_a_model_in_stages_end_in_the_bits_of_one_process(
    tmp_path, name, told, copies
) -> None:
    words = [*WORDS, *CASES[name]]
    usual, run = ended(tmp_path / "one", words), ended(tmp_path / "all", words, told, copies)
    assert_same_run(run, usual)
    stages = json.loads((run / "run.json").read_text())["hardware"]["stages"]
    # Each copy's first process has its lanes' data, and nobody another's.
    one, every = (
        {p.name: p for p in (run.parent / "log").glob("*.ledger")} for run in (usual, run)
    )
    read = {name for name, path in every.items() if path.read_text()}
    assert read == {f"{copy * stages}.ledger" for copy in range(copies)}
    lines = [line for name in read for line in every[name].read_text().splitlines()]
    assert sorted(lines) == sorted(one["0.ledger"].read_text().splitlines())


@pytest.mark.slow
def test_copies_that_are_moved_in_the_forward_pass_or_compute_again_or_in_bf16(tmp_path) -> None:
    for number, (knobs, variables) in enumerate(
        [
            (["--model.name", "running_max_buffer"], {}),
            (["--model.name", "dino_center_inplace_ema"], {}),
            ([*CASES["resnet18"], "--model.activation_checkpointing", "true"], {}),
            ([*CASES["vit"], "--numerics", "native"], BF16),
        ]
    ):
        words = [*WORDS, *knobs, "--max_steps", 2]
        usual = ended(tmp_path / f"{number}/one", words, **variables)
        assert_same_run(ended(tmp_path / f"{number}/all", words, "2", 2, **variables), usual)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 3])
def test_a_copy_that_strays_is_found_by_those_that_hold_the_same_stage(tmp_path, copies) -> None:
    """A bit of the second copy's first stage is flipped; no other stage can see it."""
    words = [*WORDS, "--tripwire", 2, "--run", tmp_path / "run"]
    strikes, count = {2: {"flip": [3, 5, 20]}}, 2 * copies
    every = {rank: {"STAGES": "2"} for rank in range(count)}
    attempt = start(tmp_path / "log", count, words, strikes, every)
    assert attempt.wait(120) == [6] * count, attempt.output()
    assert "process 2 strayed from the others by step 4, first in 0.weight" in attempt.output()
    shared = {2: "2 × 4 × 12 (copies × lanes", 3: "(3+3+2) × 12 (lanes of each copy"}
    assert f"batch 96 = {shared[copies]} × micro-batch)" in attempt.output()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 3])
def test_a_process_of_the_second_copy_is_killed(tmp_path, victim) -> None:
    usual = ended(tmp_path / "one", WORDS)
    run = tmp_path / "run"
    words = [*WORDS, "--run", run, "--resume"]
    every = {rank: {"STAGES": "2"} for rank in range(4)}
    attempt = start(tmp_path / "0", 4, words, None, every)
    deadline = time.monotonic() + 60
    while not (run / "trace.csv").exists() or len((run / "trace.csv").read_text().split()) < 8:
        assert time.monotonic() < deadline, attempt.output()
        time.sleep(0.01)
    attempt.ranks[victim].kill()
    codes = attempt.wait(60)
    assert codes == [-9 if rank == victim else 6 for rank in range(4)], attempt.output()
    assert "Traceback" not in attempt.output()
    again = start(tmp_path / "1", 4, words, None, every)
    assert again.wait(120) == [0] * 4, again.output()
    assert_same_run(run, usual)


@pytest.mark.slow
def test_a_stage_may_have_nothing_to_learn(tmp_path) -> None:
    """The second one is a ReLU."""
    words = [*WORDS, "--optim.ema", 0.9, "--optim.clip", 0.3, "--max_steps", 3]
    usual = ended(tmp_path / "one", words)
    assert_same_run(ended(tmp_path / "all", words, "2,3", 2), usual)


@pytest.mark.slow
def test_stages_that_only_some_processes_were_told_are_refused(tmp_path) -> None:
    words = [*WORDS, "--run", tmp_path / "run"]
    attempt = start(tmp_path / "log", 2, words, None, {0: {"STAGES": "2"}, 1: {}})
    assert attempt.wait(60) == [2, 2], attempt.output()
    assert "process 0 has STAGES=2, and process 1 has whole models" in attempt.output()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch norm, clipping", "vit"])  # BF16's convolutions are slow
def test_in_bf16_as_well(tmp_path, name) -> None:
    words = [*WORDS, "--numerics", "native", *CASES[name], "--max_steps", 2]
    one, two = ended(tmp_path / "one", words, **BF16), ended(tmp_path / "two", words, "2", **BF16)
    assert_same_run(two, one)
    assert json.loads((two / "run.json").read_text())["hardware"]["mixed_precision"] == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit", "convnet"])
def test_with_activations_computed_again(tmp_path, name) -> None:
    """What is computed again is in one stage, also in a model that is one sequence."""
    words = [*WORDS, *CASES.get(name, []), "--max_steps", 2]
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
    [
        ("2", ""),
        ("", "4"),
        ("4", "2"),
        ("fsdp", "2"),
        ("2", "fsdp"),
        ("2 × 2", ""),
        ("", "2 × 2"),
        ("2 × 2", "2"),
        ("2 × 2", "fsdp"),
    ],
    ids=[
        "stages, then one",
        "one, then stages",
        "four, then two",
        "shards, then stages",
        "back",
        "copies, then one",
        "one, then copies",
        "copies, then stages",
        "copies, then shards",
    ],
)
def test_killed_it_goes_on_in_another_way(tmp_path, before, after) -> None:
    """Killed in the middle of step 9, it goes on from step 7 or 5."""
    knobs = ["--optim.ema", 0.9, "--optim.clip", 0.3]
    usual = ended(tmp_path / "whole", [*WORDS, *knobs])
    words = [*WORDS, *knobs, "--run", tmp_path / "run", "--resume"]

    def attempt(home: Path, way: str, strikes: Any = None) -> Any:
        copies, stages = (2, "2") if way == "2 × 2" else (1, way)
        count = 2 if way == "fsdp" else copies * int(stages or 1)
        told = FSDP if way == "fsdp" else {"STAGES": stages}
        return start(home, count, words, strikes, dict.fromkeys(range(count), told)), count

    at = {"at": "lane", "count": 9 * (4 if before in ("fsdp", "2 × 2") else 8), "signal": 9}
    broken, _ = attempt(tmp_path / "0", before, {0: at})
    assert -9 in broken.wait(120), broken.output()
    if before.isdecimal() or before == "2 × 2":  # whose first copy is written
        files = {path.name for path in (tmp_path / "run/checkpoints/latest").iterdir()}
        many = int(before[0])
        parts = {f"{n}.{part}of{many}.safetensors" for n in PARTS for part in range(many)}
        assert files == {"SHA256SUMS", "state.json", *parts}
    again, count = attempt(tmp_path / "1", after)
    assert again.wait(240) == [0] * count, again.output()
    assert "going on after step" in again.output()
    assert_same_run(tmp_path / "run", usual)


@pytest.mark.slow
def test_copies_on_several_machines(tmp_path) -> None:
    """A copy on each, and the main process saves all: they may not see one directory."""
    words = [*WORDS, "--max_steps", 6, "--checkpoint.every", 3, "--optim.ema", 0.9]
    usual = ended(tmp_path / "one", words)
    run = ended(tmp_path / "two", words, "2", 2, LOCAL_WORLD_SIZE="2")
    files = {path.name for path in (run / "checkpoints/latest").iterdir()}
    assert files == {"SHA256SUMS", "state.json", *(f"{n}.safetensors" for n in PARTS)}
    assert_same_run(run, usual)


@pytest.mark.parametrize(
    ("said", "count", "names"),
    [
        ("", 0, ()),
        ("2", 2, ()),
        ("layer2", 2, ("layer2",)),
        ("a, b.1", 3, ("a", "b.1")),
    ],
)
def test_what_stages_says(said, count, names) -> None:
    found = asked.asked({"STAGES": said})
    assert (found.count, found.names) == (count, names) if found else count == 0


@pytest.mark.parametrize(
    ("world", "lanes", "problem", "fix"),
    [
        (1, 8, "STAGES=2 with 1 process: 2 stages are 2 processes", "use 2 in all"),
        (7, 8, "STAGES=2 with 7 processes: 2 stages are 2 processes", "use 6 in all"),
        (7, 2, "STAGES=2 with 7 processes: 2 stages are 2 processes", "use 4 in all"),
        (8, 2, "8 processes are 4 copies of the model, which cannot share 2", "use 4 in all"),
    ],
)
def test_a_number_of_processes_that_stages_cannot_be_on(world, lanes, problem, fix) -> None:
    found = asked.asked({"STAGES": "2"})
    assert found is not None
    usual = {
        "level": "lockstep",
        "precision": "no",
        "sharded": False,
        "shares": "",
        "elastic": False,
    }
    with pytest.raises(UsageError) as refused:
        asked.check(found, world, lanes=lanes, model=Config().model, **usual)
    assert problem in refused.value.problem
    assert fix in refused.value.fix


def test_a_comma_tells_a_module_whose_name_is_a_number() -> None:
    found = asked.asked({"STAGES": "3,"})
    assert found == asked.Stages(2, ("3",), "STAGES=3,")
    assert asked.asked({"STAGES": "3"}) == asked.Stages(3, (), "STAGES=3")


@pytest.mark.parametrize("said", ["0", "1", "-2", "a,,b", "a,a", ",", "2,,"])
def test_what_stages_cannot_say(said) -> None:
    with pytest.raises(UsageError, match="is neither a number of 2 or more nor names of modules"):
        asked.asked({"STAGES": said})
