"""The average of the weights over steps: what it is, that it is kept, and what becomes of it."""

import copy
import json

import pytest
import torch
from conftest import ROOT
from fault import harness
from safetensors.torch import load_file
from torch import nn

from host.errors import UsageError
from train.learn.average import Average


class Odd(nn.Module):
    """Batch norm's counters, tied weights, and a buffer that each pass puts anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + len(x)
        return self.last(self.norm(self.first(x)))


def trained(average: Average, model: nn.Module, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        model.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
        average.update(step + 1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Odd()


def test_it_is_the_average_that_the_formula_gives(model) -> None:
    average, decay = Average(model, 0.9), 0.9
    expected = {name: t.double() for name, t in copy.deepcopy(model.state_dict()).items()}
    for step in range(40):
        trained(average, model, range(step, step + 1))
        kept = min(decay, (2 + step) / (11 + step))
        for name, tensor in model.state_dict().items():
            whole = not tensor.is_floating_point()
            expected[name] = tensor if whole else kept * expected[name] + (1 - kept) * tensor
    found = average.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.allclose(tensor.double(), expected[name].double(), atol=1e-6), name
    assert torch.equal(found["first.weight"], found["last.weight"])
    assert int(found["norm.num_batches_tracked"]) == 40


def test_in_place_it_is_the_model_and_leaves_no_trace(model) -> None:
    average = Average(model, 0.9)
    trained(average, model, range(10))
    before, averaged = copy.deepcopy(model.state_dict()), average.state_dict()
    with average.in_place():
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, averaged[name])
        model.train(False)(torch.randn(2, 4))
        model.train(True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    with pytest.raises(ValueError, match="no such luck"), average.in_place():
        raise ValueError("no such luck")
    assert torch.equal(model.first.weight, before["first.weight"])


def test_its_state_goes_on_to_the_same_bits(model) -> None:
    average = Average(model, 0.99)
    trained(average, model, range(7))
    other = copy.deepcopy(model)
    again = Average(other, 0.99)
    again.load_state_dict(average.state_dict())
    trained(average, model, range(7, 12))
    trained(again, other, range(7, 12))
    for name, tensor in average.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(average.state_dict()["last.bias"], model.last.bias)


def test_weights_of_few_digits_are_refused(model) -> None:
    with pytest.raises(UsageError, match=r"optim.ema: seen is torch.bfloat16, which has too few"):
        Average(model.bfloat16(), 0.9)


KNOBS = ["--optim.ema", 0.99, "--max_steps", 30, "--checkpoint.every", 10]


@pytest.mark.slow
def test_it_is_measured_kept_and_reproduced(tmp_path) -> None:
    fit = ["fit", "--config", ROOT / "configs/digits.yaml", *KNOBS]
    for run, count in (("one", 1), ("two", 2)):
        assert harness.processes(count, *fit, "--run", run, where=tmp_path).code == 0
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("one", "two")]
    for name in ("weights_sha256", "ema_sha256", "metrics", "best"):
        assert results[0][name] == results[1][name]
    assert results[0]["weights_sha256"] != results[0]["ema_sha256"]
    last = tmp_path / "one/checkpoints/step-00000030"
    raw, averaged = (load_file(last / f"{name}.safetensors") for name in ("model", "ema"))
    assert raw.keys() == averaged.keys()
    measured = harness.processes(1, "evaluate", "--run", "one", where=tmp_path)
    assert json.loads(measured.out)["loss"] == results[0]["metrics"]["loss"]
    assert "of the average of the weights" in measured.err
    again = harness.processes(1, "reproduce", "one", where=tmp_path)
    assert again.code == 0, again.err
    assert "same bits: all 30 steps" in again.out
    # Its file is a model's file.
    for name, doubted in (("ema", False), ("model", True)):
        started = ["--model.weights", last / f"{name}.safetensors", "--max_steps", 1]
        done = harness.processes(1, *fit[:3], *started, "--run", name, where=tmp_path)
        assert done.code == 0, done.err
        said = f"the average is --model.weights {last}/ema"
        assert (said in done.out + done.err) is doubted, done
    other = harness.processes(
        1, *fit, "--optim.lr", 0.3, "--run", "one", "--resume", where=tmp_path
    )
    assert "averaged weights if you like: --model.weights one/checkpoints/latest/ema" in other.err
    # Another average than the record's is one that somebody changed.
    record = tmp_path / "one/result.json"
    record.write_text(record.read_text().replace(results[0]["ema_sha256"], "0" * 64))
    forged = harness.processes(1, "reproduce", "one", where=tmp_path)
    assert forged.code == 2
    assert "result.json gives another ema_sha256 than its checkpoint has" in forged.err


@pytest.mark.slow
def test_processes_hold_the_same_average_where_buffers_are_one_process_s(tmp_path) -> None:
    """At `deterministic`: batch norm is handed out after a pass, before the average is taken."""
    words = ["--reproducibility", "deterministic", "--tripwire", 3]
    fit = ["fit", "--config", ROOT / "configs/digits.yaml", *KNOBS, *words]
    done = harness.processes(2, *fit, "--run", tmp_path / "run")
    assert done.code == 0, done.err
