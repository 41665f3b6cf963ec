"""What an optimizer keeps, in the host's memory between updates: GPUs alone have use of it."""

import pytest
import torch
from conftest import DIGITS, one_line
from torch import nn

from host.errors import UsageError
from train.config import Config, Model, Optim
from train.lanes.tripwire import digests
from train.learn import optim
from train.learn.models import build
from train.process.failures import out_of_memory
from train.process.memory import of_shapes
from train.process.ways import ways

SHAPE = (3, 64, 64)
ADAMW = {"batch_size": 256, "lanes": 4, "model": {"name": "squeezenet1_1"}, "numerics": "native"}


def moved(name: str, *, offload: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = build(Model(name="convnet"), 10, (1, 8, 8))
    optimizer = optim.build(Config(optim=Optim(name=name, offload=offload)), model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        optimizer.step()
        held = optimizer.state_dict()  # as it is saved, and gone on with
        optimizer.load_state_dict(held)
    return model, optimizer


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "muon"])
def test_each_optimizer_takes_it(name) -> None:
    (usual, one), (other, two) = (moved(name, offload=offload) for offload in (False, True))
    for first, second in zip(usual.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)
    states = [optimizer.state_dict()["state"] for optimizer in (one, two)]
    assert states[0].keys() == states[1].keys()
    assert len(states[0]) == len(list(usual.parameters()))


def test_a_cpu_s_training_is_told_that_it_has_no_use_of_it(cli, tmp_path) -> None:
    done = cli("fit", *DIGITS, "--optim.offload", "true", "--run", tmp_path / "run")
    assert done.code == 2
    assert "this training is on the CPU" in one_line(done.err)
    assert "--optim.offload false" in done.err


def test_an_optimizer_that_keeps_nothing_is_told_so() -> None:
    with pytest.raises(UsageError, match="keeps nothing"):
        Optim(name="sgd", momentum=0, offload=True)
    Optim(name="adamw", momentum=0, offload=True)


def test_the_estimate_knows_that_it_is_away_while_activations_are_there() -> None:
    usual, away = (
        of_shapes(
            Config(**ADAMW, optim={"name": "adamw", "offload": offload, "ema": 0.99}),
            10, SHAPE, world=1, half=False,
        )
        for offload in (False, True)
    )  # fmt: skip
    assert away.optimizer == usual.optimizer == 3 * usual.weights
    # The average stays.
    assert usual.training - away.training == min(2 * usual.weights, usual.activations)
    assert away.saved == usual.saved


@pytest.mark.parametrize(
    ("knobs", "host", "is_named"),
    [
        ({"name": "adamw"}, False, True),
        ({"name": "adamw"}, True, False),  # there it is anyway
        ({"name": "sgd", "momentum": 0}, False, False),
        ({"name": "adamw", "offload": True}, False, False),
    ],
)
def test_it_is_named_where_it_would_be_enough(knobs, host, is_named) -> None:
    usual = Config(**ADAMW, optim={"name": "adamw"})
    need = of_shapes(usual, 10, SHAPE, world=1, half=False)
    room = max(need.training - 0.5 * min(2 * need.weights, need.activations), need.start)
    assert room < need.training
    if knobs.get("offload"):
        room /= 2
    found = ways(Config(**ADAMW, optim=knobs), 10, SHAPE, world=1, half=False, room=room, host=host)
    assert ("--optim.offload true (the same bits, slower)" in found) == is_named


@pytest.mark.parametrize(("offload", "is_named"), [(False, True), (True, False)])
def test_a_gpu_that_ran_out_of_memory_is_told_of_it(offload, is_named) -> None:
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
    said = out_of_memory(full, Config(optim=Optim(offload=offload)))
    assert ("--optim.offload true" in said.fix) == is_named
    on_cpu = out_of_memory(MemoryError(), Config())
    assert "offload" not in on_cpu.fix


def test_digests_are_those_of_the_tensors_where_they_are() -> None:
    tensors = [torch.randn(5), torch.randn(3, 4)]
    assert torch.equal(digests(tensors), digests(tensors, torch.device("cpu")))
