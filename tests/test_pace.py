"""Of several processes, the one that the others wait for."""

from dataclasses import replace

import pytest
import torch

from train.process import pace
from train.process.pace import Member

HOT = {"gpu_temperature": 91.0, "gpu_power": 310.0}


def company(*own: float, data: float = 0.0, gpu: bool = False, **figures: float) -> list[Member]:
    """Processes that spend so long on their part of a step; `data` and `figures` are the last's."""
    step = max(own) * 1.05
    return [
        Member(
            rank,
            f"host{rank // 4}",
            rank % 4 if gpu else None,
            {
                "step_seconds": step,
                "communication_share": 1 - seconds / step,
                "data_share": data / step if rank == len(own) - 1 else 0.0,
                **(figures if rank == len(own) - 1 else {}),
            },
            {},
        )
        for rank, seconds in enumerate(own)
    ]


def test_nobody_is_slow() -> None:
    assert pace.complaint(company(0.1, 0.1)) is None
    assert pace.complaint(company(0.1, 0.11, 0.1, 0.105)) is None


def test_the_slow_one_is_named_with_its_state() -> None:
    said = pace.complaint(company(0.1, 0.1, 0.1, 0.1, 0.1, 0.131, gpu=True, **HOT))
    assert said is not None
    assert (
        "GPU 1 of host1 takes 31 % longer for its part of a step than the others do, 131 ms" in said
    )
    assert "91 °C, 310 W" in said


def test_of_two_the_slower_is_named() -> None:
    said = pace.complaint(company(0.1, 0.2))
    assert said is not None
    assert said.startswith("process 1 of host0 takes 100 % longer")
    assert "look what else runs there" in said


def test_heat_is_named() -> None:
    said = pace.complaint(company(0.1, 0.1, 0.2, gpu=True, gpu_throttled=0.9, **HOT))
    assert said is not None
    assert "slowed down by heat or power" in said


def test_who_waits_for_data_is_no_slow_computer() -> None:
    said = pace.complaint(company(0.1, 0.1, 0.3, data=0.15))
    assert said is not None
    assert "it waits 150 ms longer for data" in said


def test_who_has_more_lanes_may_take_longer() -> None:
    members = [replace(m, lanes=n) for m, n in zip(company(0.3, 0.3, 0.2), (3, 3, 2), strict=True)]
    assert pace.complaint(members, way="SHARES") is None
    # A card that is half as fast, and has been given as few lanes as it can run meanwhile.
    members = [replace(m, lanes=n) for m, n in zip(company(0.5, 0.6), (5, 3), strict=True)]
    assert pace.complaint(members, way="SHARES") is None


def test_one_that_has_a_lane_alone_and_is_far_slower_is_named() -> None:
    members = [replace(m, lanes=n) for m, n in zip(company(0.2, 0.6, 0.1), (2, 1, 1), strict=True)]
    said = pace.complaint(members, way="SHARES")
    assert said is not None
    assert said.startswith("process 1 of host0 takes")
    assert "SHARES" not in said


def test_other_shares_are_named_where_they_would_be_faster() -> None:
    members = [replace(m, lanes=4) for m in company(0.4, 0.8)]
    said = pace.complaint(members, way="SHARES")
    assert said is not None
    assert said.endswith("; if it stays so, SHARES=6,2 and --resume would take about 600 ms")
    assert "SHARES" not in (pace.complaint(members) or "SHARES")
    # One that has a lane alone can have no fewer.
    members = [replace(m, lanes=1) for m in company(0.4, 0.8)]
    assert "SHARES" not in (pace.complaint(members, way="SHARES") or "SHARES")


def test_lanes_are_shared_by_how_long_one_takes() -> None:
    assert pace.shared([1.0, 1.0], 8) == ([4, 4], 4.0)
    assert pace.shared([1.0, 2.0], 8) == ([6, 2], 6.0)
    assert pace.shared([1.0, 1.9], 8) == ([5, 3], pytest.approx(5.7))
    assert pace.shared([1.0, 7.0, 9.0], 8) == ([6, 1, 1], 9.0)
    assert pace.shared([1.0, 1.0, 1.0], 8) == ([3, 3, 2], 3.0)


def test_what_costs_little_is_not_said() -> None:
    # All wait for the network most of the time.
    slow = company(0.01, 0.013)
    waiting = [{"step_seconds": 0.2, "communication_share": 1 - each.own / 0.2} for each in slow]
    members = [
        replace(each, figures={**each.figures, **more})
        for each, more in zip(slow, waiting, strict=True)
    ]
    assert pace.complaint(members) is None


def test_a_row_says_who_it_is(monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    figures = {"communication_share": 0.5, "data_share": 0.0}
    own = pace.member(6, torch.device("cuda", 2), figures, {}, 1)
    assert own.row().items() >= {"rank": 6, "gpu": 2, **figures}.items()
    assert pace.member(6, torch.device("cpu"), figures, {}, 1).gpu is None
