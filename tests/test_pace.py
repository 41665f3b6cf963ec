"""Of several processes, the one that the others wait for."""

from dataclasses import replace

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
    own = pace.member(6, torch.device("cuda", 2), figures, {})
    assert own.row().items() >= {"rank": 6, "gpu": 2, **figures}.items()
    assert pace.member(6, torch.device("cpu"), figures, {}).gpu is None
