"""Which sample stands where: balanced classes and repeated samples, as a function of the place."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from host.errors import UsageError
from train.config import Config
from train.data.sampling import Sampling
from train.lanes import order

LABELS = torch.tensor([0] * 50 + [2] * 5 + [1] * 17 + [4])


def sampling(labels: torch.Tensor = LABELS, balanced: bool = False, repeats: int = 1) -> Sampling:
    augment = {"repeats": repeats, "flip": True}
    config = Config(batch_size=12, seed=7, data={"balanced": balanced}, augment=augment)
    return Sampling(config, labels)


def test_by_default_each_sample_once_an_epoch() -> None:
    numbers, keys = sampling().at(0, 3 * len(LABELS))
    same, own = order.samples(7, len(LABELS), 0, 3 * len(LABELS))
    assert torch.equal(numbers, same)
    assert torch.equal(keys, own)


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.sampled_from([1, 2, 3, 6]), st.integers(0, 400), st.integers(0, 90))
def test_any_cut_of_the_stream_is_the_same(balanced, repeats, start, length) -> None:
    stream = sampling(balanced=balanced, repeats=repeats)
    numbers, keys = stream.at(0, 500)
    some, own = stream.at(start, start + length)
    assert torch.equal(some, numbers[start : start + length])
    assert torch.equal(own, keys[start : start + length])


@pytest.mark.parametrize("repeats", [2, 3, 6])
def test_a_batch_has_each_of_its_samples_so_many_times(repeats) -> None:
    stream = sampling(repeats=repeats)
    once, _ = sampling().at(0, 20 * 12 // repeats)
    for step in range(20):
        numbers, keys = stream.at(12 * step, 12 * step + 12)
        each = 12 // repeats
        assert numbers.tolist() == once[each * step : each * step + each].tolist() * repeats
        assert len({*keys.tolist()}) == 12  # varied otherwise
        assert all(a != b for a, b in pairwise(numbers))


def test_balanced_classes_have_the_same_share_of_each_epoch() -> None:
    stream, size = sampling(balanced=True), len(LABELS)
    for epoch in range(4):
        numbers, keys = stream.at(epoch * size, (epoch + 1) * size)
        counts = torch.bincount(LABELS[numbers])[[0, 1, 2, 4]]
        assert counts.max() - counts.min() <= 1
        assert len({*keys.tolist()}) == size  # a sample that comes twice is varied otherwise


def test_a_class_s_samples_come_round_and_round() -> None:
    numbers, _ = sampling(balanced=True).at(0, 40 * len(LABELS))
    for label in LABELS.unique():
        seen = Counter(numbers[LABELS[numbers] == label].tolist())
        assert {*seen} == {*torch.nonzero(label == LABELS)[:, 0].tolist()}
        assert max(seen.values()) - min(seen.values()) <= 4  # places of an epoch are shuffled


def test_neighbours_in_a_balanced_stream_do_not_depend_on_one_another() -> None:
    labels = torch.tensor([0] * 3000 + [1] * 30)
    numbers, _ = sampling(labels, balanced=True).at(0, 60_000)
    kinds = labels[numbers].double()
    assert kinds.mean().item() == pytest.approx(0.5, abs=0.002)
    pairs = (kinds[1:] * kinds[:-1]).mean().item()
    assert pairs == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 60_000) ** 0.5)


def test_seeds_and_epochs_differ() -> None:
    one = sampling(balanced=True).at(0, 2 * len(LABELS))[0]
    first, second = one.split(len(LABELS))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"batch_size": 64, "augment": {"repeats": 3, "flip": True}}, "a multiple of it"),
        ({"batch_size": 4, "augment": {"repeats": 4, "flip": True}}, "a multiple of it"),
        ({"augment": {"repeats": 2}}, "nothing is varied"),
        (
            {"batch_size": 12, "lanes": 4, "augment": {"repeats": 6, "mixup": 0.2}},
            "mix a sample with itself",
        ),
        (
            {"data": {"balanced": True}, "optim": {"class_weights": "balanced"}},
            "both make up for rare classes",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(knobs, says) -> None:
    with pytest.raises(UsageError, match=says):
        Config(**knobs)
