"""deploy/slurm/train.sbatch on a cluster: preempted, drained, lost, cancelled, out of time."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import DIGITS, stated_hash
from slurm.cluster import COUNTED, INSTALLED, Cluster, cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # clusters beside each other, and other tests, share two cores
    pytest.mark.skipif(not INSTALLED, reason="needs root, iproute2, slurm and munge"),
]
SCRIPT = "deploy/slurm/train.sbatch"
# This cluster has no GPUs, and two CPUs a node.
CPUS = ("--gpus-per-node=0", "--cpus-per-task=1", "--mem=1000")


@pytest.fixture
def slurm(tmp_path: Path, local_copy: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, local_copy) as made:
        yield made


def submit(slurm: Cluster, run: str, *options: str, knobs: tuple[str, ...] = ()) -> str:
    told = {"CONFIG": "configs/digits.yaml", "RUN": run, "CPUS": "1"}
    return slurm.submit(*CPUS, *options, SCRIPT, *knobs, **told)


def reaches(slurm: Cluster, run: str, step: int, limit: float = 300) -> None:
    """Wait for a step of a run."""
    metrics = slurm.checkout / run / "metrics.jsonl"
    deadline = time.monotonic() + limit
    while not metrics.exists() or _last(metrics) < step:
        assert time.monotonic() < deadline, slurm.do("squeue")
        time.sleep(0.2)


def _last(metrics: Path) -> int:
    lines = metrics.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def weights(slurm: Cluster, run: str) -> str:
    return str(_result(slurm, run)["weights_sha256"])


def _result(slurm: Cluster, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((slurm.checkout / run / "result.json").read_text())
    return found


@pytest.mark.skipif(not COUNTED, reason="needs slurmdbd and mariadb-server")
def test_preempted_it_saves_is_queued_again_and_goes_on(tmp_path, local_copy):
    with cluster(tmp_path, local_copy, accounts=True) as slurm:
        job = submit(slurm, "runs/low")
        reaches(slurm, "runs/low", 50)
        urgent = slurm.submit(
            "--partition=high", "--nodes=2", "--exclusive", "--wrap", "sleep 5", *CPUS
        )
        slurm.waits(job, "PENDING", restarts=1)
        slurm.waits(urgent, "COMPLETED")
        slurm.again(job)
        slurm.waits(job, "COMPLETED", restarts=1)
        said = slurm.said(job)
        assert "going on after step" in said, said
        assert f"queueing job {job} again" in said, said
        assert weights(slurm, "runs/low") == stated_hash()
        # By its number: without one sacct tells of today alone, and midnight may have been between.
        asked = "sacct", "--duplicates", "-X", "-P", "--format=JobID,State,ExitCode"
        deadline = time.monotonic() + 60
        while True:  # the accounts hear of it later than the controller
            told = slurm.do(*asked, f"--jobs={job}")
            states = [row.split("|")[1] for row in told.splitlines() if row.startswith(f"{job}|")]
            if states == ["REQUEUED", "COMPLETED"]:
                break
            assert time.monotonic() < deadline, told
            time.sleep(1)
        print(told)


def test_an_array_of_seeds_goes_on_one_by_one_when_a_node_is_drained(slurm, cli, tmp_path):
    job = submit(slurm, "runs/seed", "--array=0-2")
    reaches(slurm, "runs/seed-0", 50)
    slurm.do("scontrol", "update", "NodeName=node0", "State=DRAIN", "Reason=fan")
    slurm.do("scontrol", "requeue", f"{job}_0")
    # And one is asked to stop: the last, whose own number is the array's.
    reaches(slurm, "runs/seed-2", 20)
    slurm.do("scancel", "--signal=TERM", f"{job}_2")
    slurm.waits(f"{job}_2", "PENDING", restarts=1)
    for seed in (0, 2):
        slurm.again(f"{job}_{seed}")
    for seed in (0, 1, 2):
        slurm.waits(f"{job}_{seed}", "COMPLETED", restarts=int(seed != 1))
    assert "node1" in slurm.shown(f"{job}_0", "NodeList")
    assert weights(slurm, "runs/seed-0") == stated_hash()
    assert "going on after step" in slurm.said(f"{job}_0")
    for seed in (1, 2):
        alone = tmp_path / f"alone-{seed}"
        assert cli("fit", *DIGITS, "--run", alone, "--seed", seed).code == 0
        there = json.loads((alone / "result.json").read_text())["weights_sha256"]
        assert weights(slurm, f"runs/seed-{seed}") == there


def test_a_lost_node_has_the_job_start_again_where_there_are_nodes(slurm):
    job = submit(slurm, "runs/two", "--nodes=2")
    reaches(slurm, "runs/two", 50)
    slurm.lose(1)
    slurm.waits(job, "PENDING", restarts=1)
    slurm.returns(1)
    slurm.again(job)
    slurm.waits(job, "COMPLETED", restarts=1)
    assert "going on after step" in slurm.said(job)
    assert weights(slurm, "runs/two") == stated_hash()


def test_out_of_time_it_goes_on_in_another_turn_and_cancelled_it_does_not(slurm, cli, tmp_path):
    long = ("--epochs", "150")
    job = submit(slurm, "runs/long", "--time=30", knobs=long)
    reaches(slurm, "runs/long", 20)
    slurm.do("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    slurm.waits(job, "PENDING", restarts=1)
    slurm.do("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    slurm.again(job)
    reaches(slurm, "runs/long", _last(slurm.checkout / "runs/long/metrics.jsonl") + 20)
    slurm.do("scancel", job)
    slurm.waits(job, "CANCELLED", restarts=1)
    assert slurm.said(job).count("stopped: a signal came; step") == 2
    assert _result(slurm, "runs/long")["status"] == "stopped"
    other = submit(slurm, "runs/long", knobs=long)
    slurm.waits(other, "COMPLETED")
    alone = tmp_path / "alone"
    assert cli("fit", *DIGITS, "--run", alone, *long).code == 0
    there = json.loads((alone / "result.json").read_text())["weights_sha256"]
    assert weights(slurm, "runs/long") == there


def test_srun_starts_processes_or_make_on_each_node(slurm):
    """As docs/MIGRATING.md and docs/nodes.md say."""
    python = f"{slurm.checkout}/.venv/bin/python"
    knobs = ["--max_steps", "20", "--log.report", "false"]
    nodes = ["--nodes=2", "--cpus-per-task=1", "--mem=1000"]
    line = [python, "-m", "train", "fit", *DIGITS, "--run", "runs/old", *knobs]
    slurm.do("srun", "-n", "2", *nodes, *line)
    made = ["make", "train", "CPUS=1", "RUN=runs/made", f"ARGS={' '.join(knobs)}"]
    slurm.do("srun", "--ntasks-per-node=1", *nodes, *made)
    assert weights(slurm, "runs/old") == weights(slurm, "runs/made")
    manifest = json.loads((slurm.checkout / "runs/made/run.json").read_text())
    assert manifest["world_size"] == 2
