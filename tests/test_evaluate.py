import math
import signal

import pytest
import torch
from sklearn.metrics import confusion_matrix, top_k_accuracy_score
from torch import nn
from torch.nn import functional

from host.errors import Stopped
from train.config import Augment, Config, Data, Model
from train.data import Augmenter, load
from train.lanes import runtime as runtimes
from train.learn.models import build
from train.measure import Outcomes, _figures, evaluate
from train.process.interrupt import StopFlag


@pytest.fixture(scope="module")
def data():
    return load(Data(source="digits", holdout=0.201))


def measure(model: nn.Module, data, batch_size: int, stop: StopFlag | None = None):
    stop = stop or StopFlag()
    augmenter = Augmenter(Augment(), data.mean, data.std, torch.device("cpu"))
    config = Config(eval={"batch_size": batch_size})
    with runtimes.start(config, training=False) as runtime:
        return evaluate(model, data, augmenter, runtime, config, stop=stop), augmenter


def test_the_figures_are_those_of_scikit_learn(data) -> None:
    torch.manual_seed(1)
    model = build(Model(), 10, (1, 8, 8)).eval()
    found, augmenter = measure(model, data, 16)
    with torch.no_grad():
        logits = model(augmenter.normalize(data.validation.resident))
    truth = data.validation.labels
    assert found.samples == 361
    assert found.confusion == confusion_matrix(truth, logits.argmax(1), labels=range(10)).tolist()
    assert found.top1 == pytest.approx((logits.argmax(1) == truth).float().mean().item())
    assert found.top5 == pytest.approx(top_k_accuracy_score(truth, logits, k=5))
    assert found.loss == pytest.approx(functional.cross_entropy(logits, truth).item(), rel=1e-5)
    rows = [r[c] / sum(r) for c, r in enumerate(found.confusion)]
    assert found.per_class == rows
    assert sum(map(sum, found.confusion)) == 361


@pytest.mark.parametrize("block", [1, 7, 361, 5000])
def test_no_sample_is_left_out_or_counted_twice_whatever_the_block(data, block) -> None:
    torch.manual_seed(1)
    model = build(Model(name="mlp"), 10, (1, 8, 8))
    found, _ = measure(model, data, block)
    assert found.samples == sum(map(sum, found.confusion)) == 361
    assert [sum(row) for row in found.confusion] == torch.bincount(data.validation.labels).tolist()


def test_the_model_comes_back_in_the_mode_it_was_in(data) -> None:
    model = build(Model(), 10, (1, 8, 8)).train()
    before = [b.clone() for b in model.buffers()]
    measure(model, data, 16)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def test_classes_without_samples_and_losses_that_are_no_number() -> None:
    labels = torch.tensor([0, 0, 2])
    losses, shares = torch.tensor([0.5, math.inf, 1.0]).double(), torch.ones(3).double()
    outcomes = Outcomes(losses, torch.tensor([0, 2, 2]), shares, shares)
    found = _figures(outcomes, torch.ones(3), labels, 4)
    assert found.per_class == [0.5, None, 1.0, None]
    assert found.confusion[0] == [1, 0, 1, 0]
    assert found.full()["loss"] is None
    assert found.top1 == 2 / 3


def test_a_signal_ends_it_without_figures(data) -> None:
    model, stop = build(Model(name="mlp"), 10, (1, 8, 8)), StopFlag()
    stop.signal = signal.SIGTERM
    with pytest.raises(Stopped):
        measure(model, data, 16, stop)
    assert model.training
