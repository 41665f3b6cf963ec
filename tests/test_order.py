import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train.lanes import order


def test_the_generator_is_splitmix64() -> None:
    """First outputs for seed 0, as published with the algorithm."""
    outputs = order.keys(0, torch.arange(1, 4))
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [o % 2**64 for o in outputs.tolist()] == expected
    assert order.key(0) % 2**64 == expected[0]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
def test_numbers_and_tensors_mix_alike(values) -> None:
    signed = torch.tensor([order._signed(v) for v in values])
    assert [m % 2**64 for m in order.mix(signed).tolist()] == [order._mix(v) for v in values]


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(1, 500))
def test_an_epoch_is_a_permutation_and_a_function(seed, epoch, size) -> None:
    one = order.permutation(seed, epoch, size)
    order.permutation.cache_clear()
    assert torch.equal(one, order.permutation(seed, epoch, size))
    assert one.sort().values.tolist() == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    shuffles = {tuple(order.permutation(s, e, 50).tolist()) for s in range(5) for e in range(5)}
    assert len(shuffles) == 25


def stream(seed: int, size: int, start: int, stop: int) -> list[tuple[int, int]]:
    """(epoch, number) at each position, by the definition; and what `samples` says of them."""
    named = [
        (p // size, int(order.permutation(seed, p // size, size)[p % size]))
        for p in range(start, stop)
    ]
    numbers, keys = order.samples(seed, size, start, stop)
    assert numbers.tolist() == [number for _, number in named]
    assert keys.tolist() == [
        int(order.keys(order.key(seed, epoch, 1), torch.tensor(number))) for epoch, number in named
    ]
    return named


@settings(max_examples=60)
@given(
    size=st.integers(1, 200),
    batch_per_lane=st.integers(1, 20),
    lanes=st.sampled_from([1, 2, 3, 4, 8, 16]),
    epochs=st.integers(1, 3),
    data=st.data(),
)
def test_each_epoch_holds_each_sample_once_however_it_is_cut(
    size, batch_per_lane, lanes, epochs, data
) -> None:
    """Any size, batch, lanes, processes and resume point name the same samples, each once."""
    batch, total = batch_per_lane * lanes, size * epochs
    world = data.draw(st.sampled_from([w for w in range(1, lanes + 1) if lanes % w == 0]))
    steps = order.steps(total, batch)
    resumed = data.draw(st.integers(0, steps))
    seen: list[tuple[int, int]] = []
    for first, last in ((0, resumed), (resumed, steps)):  # a run, and the run that goes on
        for step in range(first, last):
            for rank in range(world):
                for lane in range(rank * lanes // world, (rank + 1) * lanes // world):
                    start, stop = order.lane_range(
                        step, lane, lanes=lanes, batch_size=batch, total=total
                    )
                    seen += stream(7, size, start, stop)
    assert sorted(seen) == [(e, n) for e in range(epochs) for n in range(size)]
    # … and in the order of the stream.
    assert seen == stream(7, size, 0, total)


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 5000))
def test_lanes_of_a_short_batch_differ_by_one_and_hold_two(per_lane, lanes, total) -> None:
    """Or are empty: batch norm cannot do with one sample."""
    batch = per_lane * lanes
    last = order.steps(total, batch) - 1
    spans = [
        order.lane_range(last, lane, lanes=lanes, batch_size=batch, total=total)
        for lane in range(lanes)
    ]
    sizes = [stop - start for start, stop in spans]
    full = [size for size in sizes if size]
    assert max(full) - min(full) <= 1
    assert sum(sizes) == total - last * batch
    assert sum(sizes) == batch or min(full) >= 2 or sizes[0] == sum(sizes) == 1


@pytest.mark.parametrize("high", [1, 2, 3, 9, 10])
def test_draws_are_uniform(high) -> None:
    keys = order.keys(order.key(3), torch.arange(20_000))
    counts = torch.bincount(order.randint(keys, 0, high), minlength=high)
    assert len(counts) == high
    expected = 20_000 / high
    assert ((counts - expected).abs() < 5 * expected**0.5 + 1).all()


def test_draws_of_one_key_are_independent() -> None:
    keys = order.keys(order.key(3), torch.arange(20_000))
    both = order.randint(keys, 0, 4) * 4 + order.randint(keys, 1, 4)
    counts = torch.bincount(both, minlength=16)
    assert ((counts - 1250).abs() < 180).all()
