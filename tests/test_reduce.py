"""The sum over lanes in one process; that several give the same bits, test_processes.py shows."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from train.lanes.allreduce import AllReduce
from train.lanes.state import in_place_of
from train.lanes.tree import LaneTree

LANES = 8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )


def step(model, reducer, images, labels, *, lanes=LANES):
    """One step as the loop does it; returns gradients, buffers and the report."""
    size = len(labels)
    for lane, (x, y) in enumerate(
        zip(images.tensor_split(lanes), labels.tensor_split(lanes), strict=True)
    ):
        with reducer.lane(sync=lane == lanes - 1):
            report = torch.zeros(1)
            if len(y):
                loss = functional.cross_entropy(model(x), y, reduction="sum")
                (loss * reducer.scale / size).backward()
                report = loss.detach()[None]
        reducer.add(len(y) / size, report)
    report = reducer.total()
    return (
        [p.grad.clone() for p in model.parameters()],
        [b.clone() for b in model.buffers()],
        report,
    )


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 1, 8, 8, generator=generator), torch.arange(64) % 4


def test_the_sum_is_a_balanced_tree_over_lanes(batch) -> None:
    """Gradients of the lanes apart, added by hand as ((0+1)+(2+3))+((4+5)+(6+7))."""
    leaves = []
    for x, y in zip(batch[0].chunk(LANES), batch[1].chunk(LANES), strict=True):
        model = net()
        (functional.cross_entropy(model(x), y, reduction="sum") / 64).backward()
        leaves.append([p.grad for p in model.parameters()])
    while len(leaves) > 1:
        leaves = [
            [a + b for a, b in zip(*pair, strict=True)]
            for pair in zip(leaves[::2], leaves[1::2], strict=True)
        ]
    model = net()
    gradients, _, _ = step(model, LaneTree(model, 0, [range(LANES)]), *batch)
    assert all(torch.equal(a, b) for a, b in zip(gradients, leaves[0], strict=True))


def test_batch_norm_sees_a_lane_and_averages_over_lanes(batch) -> None:
    model = net()
    _, buffers, _ = step(model, LaneTree(model, 0, [range(LANES)]), *batch)
    means = []
    for x in batch[0].chunk(LANES):
        other = net()
        other(x)
        means.append(other[1].running_mean)
    assert torch.allclose(buffers[0], torch.stack(means).mean(0), atol=1e-7)
    assert buffers[2] == 1  # one step, however many lanes


def test_both_reducers_compute_the_same_gradient(batch) -> None:
    """Up to rounding; and without batch norm it is the gradient of the whole batch."""
    results = []
    for reducer in (LaneTree, AllReduce):
        model = net()
        made = LaneTree(model, 0, [range(LANES)]) if reducer is LaneTree else AllReduce(model, 1)
        results.append(step(model, made, *batch))
        results.append(step(model, made, *batch))  # nothing may be left over from a first step
    for (one, *_, report), (other, *_, report2) in zip(results[:2], results[2:], strict=True):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))
        assert torch.allclose(report, report2)


def test_a_short_batch_weighs_each_sample_alike(batch) -> None:
    """Five samples on eight lanes: three lanes are empty."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    images, labels = batch[0][:5], batch[1][:5]
    gradients, _, report = step(model, LaneTree(model, 0, [range(LANES)]), images, labels)
    model.zero_grad()
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    assert torch.allclose(gradients[0], model[1].weight.grad, atol=1e-7)
    assert report.item() / 5 == pytest.approx(loss.item(), rel=1e-6)


class Sometimes(nn.Module):
    """Uses its second parameter when told to, which then gets a gradient of -0.0 somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: float, use: int) -> torch.Tensor:
        total = (self.a * x).sum()
        return total + (self.b * torch.tensor([-0.0, x, -x])).sum() if use else total


@pytest.mark.parametrize(
    "uses", [[1, 0] * 4, [0, 1] * 4, [1, 1, 0, 0] * 2, [0] * 8, [0] * 7 + [1], [1] * 8]
)
def test_a_parameter_that_some_lanes_do_not_use(uses) -> None:
    """The bits of the lanes apart, the signs of zeros included."""
    leaves, model = [], Sometimes()
    reducer = LaneTree(model, 0, [range(LANES)])
    for lane, use in enumerate(uses):
        alone, x = Sometimes(), 0.1 * lane + 0.3
        alone(x, use).backward()
        leaves.append([torch.zeros(3) if p.grad is None else p.grad for p in alone.parameters()])
        with reducer.lane(sync=lane == LANES - 1):
            model(x, use).backward()
        reducer.add(1 / LANES, torch.zeros(1))
    reducer.total()
    while len(leaves) > 1:
        leaves = [
            [a + b for a, b in zip(*pair, strict=True)]
            for pair in zip(leaves[::2], leaves[1::2], strict=True)
        ]
    for parameter, leaf in zip(model.parameters(), leaves[0], strict=True):
        assert torch.equal(parameter.grad.view(torch.int32), leaf.view(torch.int32))


def test_parameters_that_are_joined_have_a_gradient_each() -> None:
    """Autograd gives them parts of one tensor (biases of queries and values, in many transformers),
    which is not the same as a gradient that comes in parts.
    """

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.cat([self.q, self.v]) * x).sum()

    model, x = Joined(), torch.arange(LANES * 6.0).view(LANES, 6)
    reducer = LaneTree(model, 0, [range(LANES)])
    for _ in range(2):
        for lane in range(LANES):
            with reducer.lane(sync=lane == LANES - 1):
                model(x[lane]).backward()
            reducer.add(1 / LANES, torch.zeros(1))
        reducer.total()
        assert torch.equal(torch.cat([model.q.grad, model.v.grad]), x.sum(0))


def test_gradients_have_their_parameter_s_layout() -> None:
    """Or an optimizer that moves all at once would move one after another."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1), nn.Flatten())
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(64, 2, 4, 4).to(memory_format=torch.channels_last)
    step(model, LaneTree(model, 0, [range(LANES)]), images, torch.arange(64) % 4)
    assert [p.grad.stride() for p in model.parameters()] == [p.stride() for p in model.parameters()]
    assert not model[0].weight.grad.is_contiguous()
    # What is exchanged has it too.
    assert in_place_of(model[0].weight, torch.zeros(100), 4).stride() == model[0].weight.stride()
