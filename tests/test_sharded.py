"""Weights spread over the processes by FSDP2: the bits of one process that holds them all."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from conftest import ROOT
from fault.harness import FSDP, assert_same_run, processes, start
from torch import nn

from host.errors import UsageError
from train.config import Config
from train.lanes.blocks import units
from train.lanes.launched import check_shardable

# 14 steps of 96 samples, and a short one of 92.
WORDS: list[Any] = [
    "fit", "--config", "configs/digits.yaml", "--batch_size", 96, "--lanes", 8, "--epochs", 1,
    "--eval.every", 7, "--checkpoint.every", 5, "--log.every", 1,
]  # fmt: skip

CASES: dict[str, list[Any]] = {
    "batch norm, clipping": ["--optim.clip", 0.3, "--augment.pad", 2],
    "adamw, clipping": [
        "--numerics", "native", "--optim.name", "adamw", "--optim.lr", 0.002, "--optim.clip", 0.3,
    ],
    "dropout, average of the weights": ["--model.name", "dropnet", "--optim.ema", 0.9],
    "no batch norm, plain sgd": ["--model.name", "mlp", "--optim.momentum", 0],
    "a last batch for five of the lanes": ["--epochs", 0.342, "--optim.ema", 0.9],
    "resnet18": [
        "--model.name", "resnet18", "--model.stem", "small", "--max_steps", 2, "--batch_size", 32,
    ],
    "vit": [
        "--numerics", "native", "--model.name", "timm:test_vit", "--data.size", 32,
        "--max_steps", 3, "--batch_size", 32, "--optim.clip", 1,
    ],
}  # fmt: skip


PARTS = ("model", "optimizer", "ema")
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}


def run(home: Path, words: list[Any], world: int, *, sharded: bool, **more: Any) -> Any:
    told = (FSDP if sharded else {}) | more.get("variables", {})
    return start(home, world, words, more.get("strikes"), dict.fromkeys(range(world), told))


def ended(home: Path, words: list[Any], world: int = 1, **variables: str) -> Path:
    """To its end; sharded on more than one process."""
    words = [*words, "--run", home / "run", "--resume"]
    attempt = run(home / "log", words, world, sharded=world > 1, variables=variables)
    assert attempt.wait(240) == [0] * world, attempt.output()
    return home / "run"


@pytest.mark.slow
@pytest.mark.parametrize("knobs", CASES.values(), ids=CASES)
def test_the_bits_of_one_process(tmp_path, knobs) -> None:
    one, *others = (ended(tmp_path / str(n), [*WORDS, *knobs], n) for n in (1, 2, 4))
    for other in others:
        assert_same_run(other, one)
        assert json.loads((other / "run.json").read_text())["hardware"]["sharded"] is True


@pytest.mark.slow
def test_the_bits_of_one_process_in_bf16(tmp_path) -> None:
    knobs = ["--numerics", "native", "--max_steps", 3]
    one, two = (ended(tmp_path / str(n), [*WORDS, *knobs], n, **BF16) for n in (1, 2))
    assert_same_run(two, one)
    hardware = json.loads((two / "run.json").read_text())["hardware"]
    assert (hardware["sharded"], hardware["mixed_precision"]) == (True, "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit", "batch norm, clipping"])
def test_activations_that_are_computed_again_are_the_same(tmp_path, name) -> None:
    """In the whole model and in shards: in those of a sequence torch gathers once more for it."""
    words = [*WORDS, *CASES[name], "--max_steps", 2]
    again = [*words, "--model.activation_checkpointing", "true"]
    usual = ended(tmp_path / "usual", words)
    assert_same_run(ended(tmp_path / "one", again), usual)
    assert_same_run(ended(tmp_path / "two", again, 2), usual)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [((4, True), (1, False)), ((2, False), (4, True)), ((4, True), (2, True))],
    ids=["sharded, then whole", "whole, then sharded", "from four to two"],
)
def test_killed_it_goes_on_on_another_number(tmp_path, before, after) -> None:
    """Killed in the middle of step 9, it goes on from step 7 or 5."""
    knobs = ["--optim.ema", 0.9, "--optim.clip", 0.3]
    whole = ended(tmp_path / "whole", [*WORDS, *knobs])
    words = [*WORDS, *knobs, "--run", tmp_path / "run", "--resume"]
    world, sharded = before
    strikes = {0: {"at": "lane", "count": 9 * 8 // world, "signal": 9}}
    broken = run(tmp_path / "0", words, world, sharded=sharded, strikes=strikes)
    assert -9 in broken.wait(120), broken.output()
    world, sharded = after
    again = run(tmp_path / "1", words, world, sharded=sharded)
    assert again.wait(240) == [0] * world, again.output()
    assert "going on after step" in again.output()
    assert_same_run(tmp_path / "run", whole)


_TIED = """
from torch import nn

def build(classes, shape):
    first, second, last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, classes)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)
"""


@pytest.mark.slow
def test_a_weight_with_two_names(tmp_path) -> None:
    """Whole and in parts, also where a file to begin with has it by one of them."""
    (tmp_path / "tied.py").write_text(_TIED)
    scope: dict[str, Any] = {}
    exec(_TIED, scope)
    safetensors.torch.save_model(scope["build"](10, (1, 8, 8)), str(tmp_path / "first.safetensors"))
    words = ["fit", "--config", ROOT / "configs/digits.yaml", "--model.name", "tied:build"]
    words += ["--numerics", "native", "--max_steps", 4, "--checkpoint.every", 2]
    place = {"WORK": str(tmp_path)}
    one, two = (ended(tmp_path / str(n), words, n, **place) for n in (1, 2))
    assert_same_run(two, one)
    words += ["--model.weights", tmp_path / "first.safetensors"]
    one, two = (ended(tmp_path / f"{n} begun", words, n, **place) for n in (1, 2))
    assert_same_run(two, one)


@pytest.mark.slow
def test_weights_to_begin_with(tmp_path, finished) -> None:
    """Who tells what it took of the file waits for no other process."""
    file = finished / "checkpoints/best/model.safetensors"
    words = [*WORDS, "--max_steps", 2, "--model.weights", file]
    one, two = (ended(tmp_path / str(n), words, n) for n in (1, 2))
    assert_same_run(two, one)
    told = [*words, "--run", tmp_path / "staged"]
    both = {rank: {"STAGES": "2"} for rank in range(2)}
    staged = start(tmp_path / "log", 2, told, None, both)
    assert staged.wait(120) == [0, 0], staged.output()
    assert "weights: 26 of 26 tensors from" in staged.output()
    assert_same_run(tmp_path / "staged", one)


@pytest.mark.slow
def test_over_several_machines_the_main_process_saves_all(tmp_path) -> None:
    """They may not see one directory; a run goes on from such a checkpoint on one machine."""
    words = [*WORDS, "--max_steps", 6, "--checkpoint.every", 3, "--optim.ema", 0.9]
    one = ended(tmp_path / "one", words)
    # As torchrun says it of a process on each of two machines.
    told = FSDP | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    again = [*words, "--run", tmp_path / "run", "--resume"]
    every, strikes = dict.fromkeys(range(2), told), {1: {"at": "lane", "count": 18, "signal": 9}}
    first = start(tmp_path / "0", 2, again, strikes, every)
    assert first.wait(120)[1] == -9, first.output()
    files = {path.name for path in (tmp_path / "run/checkpoints/latest").iterdir()}
    assert files == {"SHA256SUMS", "state.json", *(f"{n}.safetensors" for n in PARTS)}
    assert run(tmp_path / "1", again, 2, sharded=True).wait(120) == [0, 0]
    files = {path.name for path in (tmp_path / "run/checkpoints/latest").iterdir()}
    parts = {f"{name}.{part}of2.safetensors" for name in PARTS for part in range(2)}
    assert files == {"SHA256SUMS", "state.json", *parts}
    assert_same_run(tmp_path / "run", one)


@pytest.mark.slow
def test_each_process_holds_its_part(tmp_path) -> None:
    """On a CPU Accelerate makes DDP of FSDP, of which each process would hold all."""
    words = [*WORDS, "--max_steps", 1, "--run", tmp_path / "run"]
    attempt = run(tmp_path / "0", words, 4, sharded=True)
    assert attempt.wait(120) == [0] * 4, attempt.output()
    said = attempt.output()
    (every,) = re.findall(r"convnet: ([\d.]+) M parameters", said)
    (mine,) = re.findall(r"sharded \(FSDP2\): ([\d.]+) M of these", said)
    assert float(mine) == pytest.approx(float(every) / 4, abs=0.005)


@pytest.fixture
def cgroups() -> Iterator[Callable[[int], str]]:
    """Makes a control group with so many bytes of memory."""
    made: list[Path] = []

    def make(limit: int) -> str:
        old = Path("/sys/fs/cgroup/memory")
        root, name = (old, "memory.limit_in_bytes") if old.is_dir() else (old.parent, "memory.max")
        made.append(root / f"lockstep-{os.getpid()}-{len(made)}")
        try:
            made[-1].mkdir()
            (made[-1] / name).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return str(made[-1])

    yield make
    for path in made:
        if path.is_dir():
            path.rmdir()


WIDE = """
from torch import nn


def build(classes, shape):
    hidden = [layer for _ in range(11) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2048), *hidden, nn.Linear(2048, classes))
    return nn.Sequential(layers)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    # Named, as other work beside this would move the cut that is found by time.
    ("way", "lanes"),
    [(FSDP, 4), ({"STAGES": "0.12"}, 8)],
    ids=["shards", "stages"],
)
def test_a_model_that_one_process_has_no_memory_for(tmp_path, cgroups, way, lanes) -> None:
    """185 MB of weights; AdamW and eight lanes want six times as much, and with the copy that is
    saved nine; each process has six and a half, which is enough on a slow disk too, where the copy
    stays for long. A killed run goes on in that.
    """
    (tmp_path / "wide.py").write_text(WIDE)
    victim = 1 if way is FSDP else 0  # the one that has the lanes' data
    limit = 13 * 185_000_000 // 2
    words = [
        *WORDS, "--config", ROOT / "configs/digits.yaml", "--numerics", "native",
        "--model.name", "wide:build", "--optim.name", "adamw", "--optim.lr", 1e-4,
        "--checkpoint.every", 2, "--log.report", "false",
    ]  # fmt: skip

    def trained(
        folder: str, name: str, world: int, *, limited: bool = True, **strike: Any
    ) -> tuple[list[int | None], str]:
        told = (way if world > 1 else {}) | {"WORK": str(tmp_path)}
        strikes = {rank: {"cgroup": cgroups(limit)} for rank in range(world * limited)}
        if strike:
            strikes[victim] |= strike
        again = [*words, "--max_steps", 4, "--run", tmp_path / name, "--resume"]
        every = dict.fromkeys(range(world), told)
        attempt = start(tmp_path / folder, world, again, strikes, every)
        return attempt.wait(300), attempt.output()

    codes, said = trained("0", "one", 1)
    assert codes == [-9], said
    assert "GiB are needed, and the cgroup's limit has 1." in said
    # In the fourth step, with that of the second saved.
    codes, said = trained("1", "two", 2, at="lane", count=4 * lanes - 1, signal=9)
    assert sorted(codes, key=str) == [-9, 6], said
    assert codes[victim] == -9, said
    codes, said = trained("2", "two", 2)
    assert codes == [0, 0], said
    assert "going on after step 2" in said
    result = json.loads((tmp_path / "two/result.json").read_text())
    assert trained("3", "whole", 1, limited=False)[0] == [0]
    whole = json.loads((tmp_path / "whole/result.json").read_text())
    assert result["weights_sha256"] == whole["weights_sha256"]


FAST = ["--reproducibility", "fast", "--numerics", "native"]


def trace(run: Path) -> torch.Tensor:
    """Loss and the gradient's norm of each step."""
    rows = (run / "trace.csv").read_text().splitlines()[1:]
    return torch.tensor([[float.fromhex(word) for word in row.split(",")[1:3]] for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no batch norm, plain sgd", "vit", "some lanes without samples"])
def test_at_fast_it_sums_as_one_process_but_for_rounding(tmp_path, name) -> None:
    """The last step has samples for five lanes of eight, on one process more than on another."""
    knobs = ["--model.name", "mlp", "--epochs", 0.342, "--optim.ema", 0.9, "--optim.clip", 1]
    words = [*WORDS, *CASES.get(name, knobs), *FAST]
    one, *others = (ended(tmp_path / str(n), words, n) for n in (1, 2, 4))
    for other in others:
        assert torch.allclose(trace(other), trace(one), rtol=1e-4)
        result, usual = (json.loads((run / "result.json").read_text()) for run in (other, one))
        assert result["metrics"]["loss"] == pytest.approx(usual["metrics"]["loss"], rel=1e-4)


@pytest.mark.slow
def test_at_deterministic_the_same_number_gives_the_same_bits(tmp_path) -> None:
    words = [*WORDS, "--reproducibility", "deterministic", "--optim.clip", 0.3, "--optim.ema", 0.9]
    usual = ended(tmp_path / "usual", words, 2)
    again = [*words, "--run", tmp_path / "run", "--resume"]
    strikes = {1: {"at": "lane", "count": 9 * 4, "signal": 9}}
    broken = run(tmp_path / "0", again, 2, sharded=True, strikes=strikes)
    assert -9 in broken.wait(120), broken.output()
    for world, sharded, line in (
        (4, True, "started on 2 processes, and this is 4"),
        (2, False, "was started with ACCELERATE=fsdp, and this is without it"),
    ):
        other = run(tmp_path / f"other{world}", again, world, sharded=sharded)
        assert set(other.wait(60)) <= {2, 6}
        assert line in other.output()
    rest = run(tmp_path / "1", again, 2, sharded=True)
    assert rest.wait(120) == [0, 0], rest.output()
    assert_same_run(tmp_path / "run", usual)
    done = processes(1, "reproduce", usual)
    assert "same bits: all" in done.out, done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "variables", "line"),
    [
        (
            ["--optim.name", "lamb", "--numerics", "native"],
            {},
            "optim.name lamb looks at whole tensors",
        ),
        (["--optim.name", "adamw"], {}, "takes AdamW's fused form"),
        (["--model.channels_last", "true"], {}, "model.channels_last is not for sharded"),
        (
            [*FAST, "--model.name", "maxnorm_renorm_weight_data_in_forward"],
            {},
            "is changed by the model itself, and each process has a part",
        ),
        (
            [*FAST, "--model.name", "weight_norm_data_dependent_init"],
            {},
            "l1.bias is changed by the model itself, and each process has a part",
        ),
        ([], {"SHARES": "5,3"}, "SHARES=5,3: where weights are sharded all processes have as"),
        ([], {"FSDP_VERSION": "1"}, "says fsdp_version: 1"),
        ([], {"FSDP_OFFLOAD_PARAMS": "true"}, "says fsdp_offload_params: true"),
        ([], {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, "says fsdp_auto_wrap_policy: no_wrap"),
    ],
)
def test_what_would_be_other_is_refused(tmp_path, knobs, variables, line) -> None:
    words = [*WORDS, *knobs, "--run", tmp_path / "run"]
    attempt = start(tmp_path / "0", 2, words, None, dict.fromkeys(range(2), FSDP | variables))
    assert set(attempt.wait(60)) <= {2, 6}
    assert line in attempt.output()
    assert "Traceback" not in attempt.output()


def test_an_older_torch_that_cannot_shard_so_is_refused(monkeypatch) -> None:
    """As that of CUDA=cuda12."""
    monkeypatch.delattr("torch.distributed.fsdp.FSDPModule.set_reduce_scatter_unused_params")
    with pytest.raises(UsageError, match=r"cannot sum gradients .*; that of CUDA=cuda13 can"):
        check_shardable(Config(), "no")


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem, self.head = nn.Linear(64, 128), nn.Linear(128, classes)
        self.body = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))

    def forward(self, images):
        x = self.stem(images.flatten(1))
        FORWARD
        return self.head(x)

def build(classes, shape):
    return Net(classes)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "line"),
    [
        # One block of the same size or the other: nothing but the order of gathering tells.
        ("x = x + self.body[int(torch.randint(4, ()))](x).relu()", "come to different blocks"),
        ("x = x @ self.body[0].weight + self.body[1](x)", "a block's weights from outside"),
        ("for b in self.body: x = b(x) if torch.rand(()) < 0.5 else x", "come to different blocks"),
        ("self.body[2].weight.data.mul_(0.99); x = self.body[2](x)", "changed by the model"),
        ("x = self.body[3](x)", None),
    ],
    ids=["by chance", "from outside", "left out", "changed", "three unused"],
)
def test_what_a_model_does_with_its_blocks(tmp_path, forward, line) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("FORWARD", forward))
    words = [*WORDS, "--config", ROOT / "configs/digits.yaml", "--max_steps", 3]
    words += ["--numerics", "native", "--model.name", "mine:build"]
    runs = {world: tmp_path / str(world) for world in (1, 2)}
    for world, place in runs.items():
        told = {"WORK": str(tmp_path)} | (FSDP if world > 1 else {})
        given = [*words, "--run", place / "run"]
        attempt = start(place / "log", world, given, None, dict.fromkeys(range(world), told))
        wanted = 2 if line and world > 1 else 0
        assert attempt.wait(120) == [wanted] * world, attempt.output()
        if wanted:
            [said] = [s for s in attempt.output().splitlines() if s.startswith("error: ")]
            assert line in said
    if line is None:
        assert_same_run(runs[2] / "run", runs[1] / "run")


def test_one_process_says_that_it_has_them_whole(cli, tmp_path, monkeypatch) -> None:
    words = ["fit", "--config", "configs/digits.yaml", "--max_steps", 2, "--run", tmp_path / "run"]
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    done = cli(*words)
    assert done.code == 0, done.err
    assert "warning: ACCELERATE=fsdp spreads weights over processes, and there is one" in done.out


@pytest.mark.slow
def test_other_verbs_do_without(cli, monkeypatch, finished) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    done = cli("evaluate", "--run", finished)
    assert (done.code, "ACCELERATE=fsdp is for make train" in done.err) == (2, True)


def test_what_is_gathered_at_a_time() -> None:
    def layer() -> nn.Module:
        return nn.Linear(128, 128)

    blocks = nn.Sequential(layer(), nn.ReLU(), layer())
    model = nn.ModuleDict({"stem": nn.Linear(2, 128), "body": blocks, "head": nn.Linear(128, 9)})
    assert list(units(model)) == [blocks[0], blocks[2]]
    assert list(units(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))) == []


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("resnet18", {"BasicBlock": 8, "Linear": 1}),
        ("vit_b_16", {"EncoderBlock": 12, "Conv2d": 1, "Linear": 1}),
        ("alexnet", {"Conv2d": 5, "Linear": 3}),
        ("densenet121", {"_DenseBlock": 4, "_Transition": 3, "Linear": 1}),
        ("convnext_tiny", {"CNBlock": 18, "Conv2d": 3, "Linear": 1}),
    ],
)
def test_the_blocks_of_torchvision_s_models(name, kinds) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    assert Counter(type(block).__name__ for block in units(model)) == kinds


@pytest.mark.parametrize("world", [2, 4, 8, 16])
def test_halving_adds_as_the_tree_does(world) -> None:
    """On what each process would have after the swaps, in this one."""
    from train.lanes.gathering import Silence, TreeReduceScatter

    rows = torch.randn(world, world * 5, generator=torch.Generator().manual_seed(world))
    tree = list(rows)
    while len(tree) > 1:
        tree = [a + b for a, b in zip(tree[::2], tree[1::2], strict=True)]
    held = {
        rank: rows[rank].view(world, -1)[TreeReduceScatter(rank, world, Silence())._places]
        for rank in range(world)
    }
    distance = 1
    while distance < world:
        halves = {rank: blocks.chunk(2) for rank, blocks in held.items()}
        held = {
            rank: halves[rank][bool(rank & distance)]
            + halves[rank ^ distance][bool(rank & distance)]
            for rank in held
        }
        distance *= 2
    for rank, (block,) in held.items():
        assert torch.equal(block, tree[0].view(world, -1)[rank])
