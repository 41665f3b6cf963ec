import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.config.optim import Schedule
from train.learn.schedule import is_due, lr_at

kinds = st.sampled_from(get_args(Schedule))


@given(kinds, st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1), st.data())
def test_the_rate_stays_between_zero_and_the_peak(kind, total, warm, final, data) -> None:
    step = data.draw(st.integers(0, total - 1))
    rate = lr_at(
        step, total, peak=0.4, warmup=int(warm * total), kind=kind, final=final, milestones=[0.5]
    )
    assert 0 <= rate <= 0.4


@given(st.integers(1, 1000), st.integers(2, 50))
def test_warm_up_rises_in_equal_steps_to_the_peak(total, warmup) -> None:
    rates = [lr_at(s, total + warmup, peak=1.0, warmup=warmup) for s in range(warmup)]
    assert rates == pytest.approx([(s + 1) / warmup for s in range(warmup)])
    assert rates[-1] == 1.0


def test_known_points() -> None:
    assert lr_at(0, 100, peak=2.0) == 2.0
    assert lr_at(50, 100, peak=2.0) == 1.0
    assert lr_at(100, 100, peak=2.0, final=0.1) == pytest.approx(0.2)
    assert lr_at(25, 100, peak=1.0, kind="linear", final=0.2) == pytest.approx(0.8)
    assert lr_at(99, 100, peak=1.0, kind="constant") == 1.0
    assert lr_at(50, 100, peak=1.0, kind="poly") == pytest.approx(0.25)
    assert lr_at(50, 100, peak=1.0, kind="poly", power=1.0) == pytest.approx(0.5)
    steps = [lr_at(s, 100, peak=1.0, kind="step", milestones=[0.3, 0.6]) for s in (29, 30, 59, 60)]
    assert steps == pytest.approx([1.0, 0.1, 0.1, 0.01])


def test_one_cycle_is_torchs() -> None:
    """OneCycleLR, which takes its last step of the rise and of the run for their ends."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    made = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=1001)
    theirs = []
    for _ in range(1000):
        theirs.append(made.get_last_lr()[0])
        optimizer.step()
        made.step()
    ours = [lr_at(step, 1000, peak=0.4, kind="onecycle") for step in range(1000)]
    assert ours == pytest.approx(theirs, abs=0.4 * 0.006)
    assert max(ours) == 0.4 == lr_at(300, 1000, peak=0.4, kind="onecycle")
    assert ours[0] == pytest.approx(0.016)
    assert lr_at(10, 1000, peak=0.4, kind="onecycle", warmup=10) == 0.4


def test_the_rate_has_ten_digits_and_no_more() -> None:
    rate = lr_at(17, 100, peak=0.1)
    exact = 0.1 * 0.5 * (1 + math.cos(math.pi * 0.17))
    assert rate != exact
    assert rate == float(f"{exact:.10g}")


@given(st.integers(1, 1000), st.integers(1, 50))
def test_work_is_due_at_each_multiple_and_at_the_end(total, every) -> None:
    due = [s for s in range(1, total + 1) if is_due(s, every, total)]
    assert due == sorted({*range(every, total + 1, every), total})
