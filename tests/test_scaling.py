"""The model of more machines: by hand, and from a run's files."""

import json

import pytest
from conftest import one_line

from host.errors import UsageError
from train.runs import scaling
from train.runs.scaling import Link, Work

LINK = Link(rate=1e8, delay=0.01)  # 100 MB/s, 10 ms


def work(**other) -> Work:
    usual = {"own": 0.3, "lanes": 1, "buckets": (10**7, 1000), "gpu": False, "each": 1}
    return Work(**{**usual, **other})


def test_of_one_machine_nobody_waits() -> None:
    assert work().communication(1, LINK) == 0.0
    assert work(each=8).communication(8, LINK) == 0.0


def test_two_machines_exchange_once() -> None:
    # The only bucket of gradients is there once the backward pass is done: 10 ms + 100 ms, and the
    # rest 10 ms.
    assert work().communication(2, LINK) == pytest.approx(0.01 + 0.1 + 0.01 + 1e-5)


def test_rounds_are_the_logarithm() -> None:
    two = work().communication(2, LINK)
    assert work().communication(4, LINK) == pytest.approx(2 * two)
    assert work().communication(16, LINK) == pytest.approx(4 * two)


def test_buckets_go_while_the_pass_goes_on() -> None:
    """Ten buckets of 11 ms are hidden by a backward pass of 200 ms, but for the last one."""
    small = work(buckets=(*[10**5] * 10, 1000))
    assert small.communication(2, LINK) == pytest.approx(0.011 + 0.01 + 1e-5)


def test_processes_of_a_machine_share_its_link() -> None:
    # Of sixteen, eight on each: three rounds inside, one between; each has an eighth of the link.
    assert work(each=8, lanes=4).communication(16, LINK) == pytest.approx(
        max(0.05 + 0.01 + 0.8 - 0.05, 0) + 0.01 + 8e-5
    )


def test_a_long_vote_counts_where_nothing_hides_it() -> None:
    quick = Link(rate=1e12, delay=0.01)
    assert work(buckets=(8, 8)).communication(1024, quick) == pytest.approx(10.23)
    # A GPU computes for 0.3 s meanwhile.
    assert work(buckets=(8, 8), gpu=True).communication(1024, quick) == pytest.approx(9.93)


def test_odd_machines_are_refused() -> None:
    with pytest.raises(UsageError, match="share lanes by halves"):
        scaling.on(work(), 3)


def test_a_run_on_one_machine_needs_a_link(cli, finished) -> None:
    refused = cli("scaling", "--run", finished)
    assert refused.code == 2
    assert "no link between machines" in one_line(refused.err)
    told = cli("scaling", "--run", finished, "--rate", 100, "--delay", 0.03, "--each", 8)
    assert told.code == 0, told.err
    assert "1 process on 1 machine, 0.253 MiB summed in 2 parts a step" in told.out
    assert "A model, not a measurement, of 8 processes a machine, 100 Gbit/s, 0.03 ms" in told.out
    rows = [row.split() for row in told.out.splitlines()[-4:]]
    assert [row[0] for row in rows] == ["1", "8", "64", "1,024"]
    assert [row[1] for row in rows] == ["1", "1", "8", "128"]


def test_it_stands_beside_what_was_measured(cli, finished, tmp_path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = json.loads((finished / "run.json").read_text())
    record |= {"world_size": 2, "accumulation": 4, "exchanged": [10**7, 1000]}
    record["network"] = {"machines": 2, "rate": 1e8, "delay": 0.01}
    (run / "run.json").write_text(json.dumps(record))
    processes = [
        {
            "rank": rank,
            "host": f"h{rank}",
            "step_seconds": 0.5,
            "communication_share": share,
            "data_share": 0.0,
        }
        for rank, share in enumerate((0.2, 0.4))
    ]
    row = {"kind": "health", "step": 9, **processes[0], "processes": processes}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    told = cli("scaling", "--run", run)
    assert told.code == 0, told.err
    (run / "run.json").write_text(json.dumps(record | {"shares": [5, 3]}))
    refused = cli("scaling", "--run", run)
    assert refused.code == 2
    assert "its processes ran 5+3 lanes" in one_line(refused.err)
    # The slower one's own part is 0.4 s; a lane's backward pass 67 ms.
    assert "measured    500.0 ms    100.0 ms" in told.out
    assert "model    520.0 ms    120.0 ms" in told.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "0"], "0 is no positive number"),
        (["--delay", "nan"], "nan is no positive number"),
    ],
)
def test_what_is_no_number_is_refused(cli, finished, words, said) -> None:
    refused = cli("scaling", "--run", finished, *words)
    assert refused.code == 2
    assert said in refused.err


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        ({}, "the network's library sums"),
        ({"stages": 2}, "its model was in stages"),
        ({"sharded": True}, "its weights were sharded"),
    ],
)
def test_other_sums_are_not_its_business(cli, finished, tmp_path, hardware, says) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = json.loads((finished / "run.json").read_text())
    record["exchanged"] = [1000] if hardware else []
    record["config"]["reproducibility"] = "lockstep" if hardware else "fast"
    record["hardware"] |= hardware
    (run / "run.json").write_text(json.dumps(record))
    (run / "metrics.jsonl").write_text((finished / "metrics.jsonl").read_text())
    refused = cli("scaling", "--run", run)
    assert refused.code == 2
    assert says in one_line(refused.err)
