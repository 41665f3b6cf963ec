"""What a machine is told of the others: by make, by clusters, and by what cannot be."""

import json
import os
import socket
import subprocess
import sys

import pytest
from conftest import DIGITS, ROOT
from test_launch import start

from container import compose
from host import fleet, launcher, nodes, plan
from host.errors import LockstepError, UsageError

OURS = {"NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
# Environments as their makers document them.
CLUSTERS = {
    # https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"
    "slurm": (
        {
            "SLURM_JOB_NODELIST": "gpu[07-08,12]", "SLURM_STEP_NODELIST": "gpu[07-08,12]",
            "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NODEID": "2",
            "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
        },
        (3, 2, "gpu07", None),
    ),
    # https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html
    "skypilot": (
        {
            "SKYPILOT_NODE_IPS": "10.1.0.5\n10.1.0.9", "SKYPILOT_NODE_RANK": "1",
            "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        },
        (2, 1, "10.1.0.5", 8),
    ),
    # https://www.kubeflow.org/docs/components/trainer/, the torch runtime's pods
    "kubeflow": (
        {
            "PET_NNODES": "4", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "3",
            "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400",
        },
        (4, 3, "job-node-0-0.job", 2),
    ),
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    "openmpi": (
        {
            "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "MASTER_ADDR": "10.0.0.7",
        },
        (2, 1, "10.0.0.7", None),
    ),
    "mpich": (
        {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "a"},
        (2, 0, "a", None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_a_cluster_says(name) -> None:
    environ, expected = CLUSTERS[name]
    found = nodes.told(environ)
    assert found is not None
    assert (found.count, found.rank, found.address, found.processes) == expected
    # What make is told outweighs it; a launcher's own process is no machine.
    mine = nodes.told({**environ, **OURS})
    assert mine is not None
    assert (mine.count, mine.rank, mine.address) == (2, 1, "10.0.0.1")
    assert nodes.told({**environ, "LOCAL_RANK": "0"}) is None
    assert nodes.told({**environ, "NODES": "1"}) is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NODES": ""},
        {"NODES": "1"},
        {"NODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "a"},
        {"SLURM_NNODES": "4", "SLURM_NODEID": "0"},  # a batch script, which runs on one
        {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8"},
        {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0"},
        {"PET_NNODES": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ],
)
def test_one_machine_alone(environ) -> None:
    assert nodes.told(environ) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"NODES": "2"}, "NODES=2 without NODE_RANK and MASTER_ADDR"),
        ({"NODES": "2", "NODE_RANK": "0"}, "NODES=2 without MASTER_ADDR"),
        ({**OURS, "NODES": "two"}, "NODES=two is no number of machines"),
        ({**OURS, "NODES": "0"}, "NODES=0 is no number of machines"),
        ({**OURS, "NODES": "3:2"}, "NODES=3:2 is no number of machines"),
        ({**OURS, "NODES": "0:2"}, "NODES=0:2 is no number of machines"),
        ({**OURS, "NODE_RANK": "2"}, "this is node 2, and NODES says 2 nodes"),
        ({**OURS, "NODE_RANK": "-1"}, "NODE_RANK=-1 is no number from 0"),
        ({**OURS, "MASTER_PORT": "99999"}, "MASTER_PORT=99999 is no port"),
        ({**OURS, "MASTER_ADDR": "a b"}, "MASTER_ADDR=a b is no address"),
        ({**OURS, "NODE_WAIT": "long"}, "NODE_WAIT=long is no number from 1"),
        ({**OURS, "NODE_SILENCE": "1"}, "NODE_SILENCE=1 is no number from 5"),
        ({"NODE_RANK": "1"}, "NODE_RANK is set, and NODES is not"),
        ({"NODES": "1", "NODE_RANK": "1"}, "NODE_RANK=1 of NODES=1"),
        (
            {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "16"},
            "srun starts 16 tasks on 2 nodes",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun starts 2"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI_SIZE says 2 nodes, and not where they meet"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4 is no number"),
    ],
)
def test_what_cannot_be_is_refused(environ, says) -> None:
    with pytest.raises(UsageError) as refused:
        nodes.told(environ)
    assert says in str(refused.value)
    assert refused.value.fix


def test_the_first_of_slurm_s_list() -> None:
    first = nodes.first_host
    assert first("a") == "a"
    assert first("a,b") == "a"
    assert first("gpu[7-12,15]") == "gpu7"
    assert first("gpu[07-12]-x,big[1-2]") == "gpu07-x"
    assert first("n[003,5]") == "n003"


def test_the_plan_is_made_for_each_machine() -> None:
    two = nodes.told(OURS)
    made = plan.make({"CPUS": "4"}, 0, 8, nodes=two)
    assert (made.processes, made.local, made.device) == (8, 4, "cpu")
    made = plan.make({}, 8, 8, nodes=two)  # of eight GPUs those that can share the lanes
    assert (made.processes, made.local, made.device) == (8, 4, "cuda")
    assert made.config.name == "multi_node.yaml"
    sky = nodes.told(CLUSTERS["skypilot"][0])
    made = plan.make({"PRECISION": "bf16"}, 8, 64, nodes=sky)
    assert (made.processes, made.precision) == (16, "bf16")
    with pytest.raises(LockstepError, match="ACCELERATE=gpu is about one machine"):
        plan.make({"ACCELERATE": "gpu"}, 8, 8, nodes=two)
    with pytest.raises(LockstepError, match="GPUS=4, and 2 GPUs can be seen here"):
        plan.make({"GPUS": "4"}, 2, 8, nodes=two)


def test_bad_input_ends_before_anything_starts() -> None:
    digits = ("fit", "--config", "configs/digits.yaml", "--run", "runs/never")
    done = start(*digits, NODES="3", NODE_RANK="0", MASTER_ADDR="10.0.0.1", CPUS="3")
    assert done.returncode == 2
    assert "9 processes cannot share 8 lanes" in done.stderr
    done = start("sweep", "--config", "configs/digits.yaml", "--seeds", "2", NODES="2")
    assert done.returncode == 2
    assert "NODES=2 is for training: sweep runs on one machine" in done.stderr
    assert not (ROOT / "runs/never").exists()


BARE = {
    "openmpi": (
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpich": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BARE)
def test_processes_of_mpi_and_srun_train_together(tmp_path, name) -> None:
    """No launcher but theirs: what it says of each process is all that there is."""
    started = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for rank in (0, 1):
        told = dict(zip(BARE[name], ("2", str(rank), str(rank), "2"), strict=True))
        words = ["-m", "train", "fit", *DIGITS, "--max_steps", "4", "--run", str(tmp_path / "run")]
        environ = {**os.environ, **told, "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": "-1"}
        started.append(subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environ))
    assert [each.wait(120) for each in started] == [0, 0]
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert manifest["world_size"] == 2


def test_jobs_of_slurm_that_share_a_node_meet_at_ports_of_their_own() -> None:
    told = CLUSTERS["slurm"][0]
    ports = [nodes.told({**told, "SLURM_JOB_ID": str(job)}).port for job in (1, 2, 2**31)]
    assert len(set(ports)) == 3
    assert all(1024 < port < 32768 for port in ports)
    assert nodes.told({**told, "SLURM_JOB_ID": "1", "MASTER_PORT": "29501"}).port == 29501


def test_bare_processes_must_know_where_they_meet(monkeypatch) -> None:
    for name, value in zip(BARE["openmpi"], ("4", "2", "0", "2"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="says 4 processes on several machines"):
        launcher.adopt()
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    launcher.adopt()
    assert (launcher.rank(), launcher.local_rank(), launcher.local_world()) == (2, 0, 2)
    assert launcher.world() == 4


def test_make_refuses_them_where_they_do_nothing(tmp_path) -> None:
    for target, name in (("eval", "NODES=2"), ("sweep", "NODE_RANK=1"), ("tune", "SHARES=5,3")):
        words = ["make", target, name, "ENGINE=local"]
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ}
        )
        assert done.returncode == 2
        said = f"{name.split('=')[0]} is for make train, and does nothing with make {target}"
        assert said in done.stderr


@pytest.mark.parametrize(
    ("own", "each", "gpus", "told"),
    [
        ({}, 2, 0, {"CPUS": "2"}),
        ({}, 4, 8, {"GPUS": "4"}),
        ({}, 8, 8, {}),  # all of them; an experiment for the CPU takes none
        ({}, None, 8, {}),
        ({"CPUS": "1"}, 2, 0, {}),
        ({"GPUS": "free"}, 2, 8, {}),
    ],
)
def test_a_container_hears_how_many_processes_the_cluster_wants(own, each, gpus, told) -> None:
    machines = nodes.Nodes(2, 0, "10.0.0.1", 29500, "PET_NNODES", processes=each)
    assert compose.processes(own, machines, gpus) == told


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        (OURS, 2),
        ({"NODES": "2:4", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1"}, 4),
        ({"NODES": "1:1"}, 1),
        ({"PET_NNODES": "1:1"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "MASTER_ADDR": "10.0.0.1"}, 2),
        ({"SLURM_JOB_NUM_NODES": "2"}, 2),
        # A step of one node, in a job of two.
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.1"}, 2),
        ({"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "ws1"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost"}, 1),
        # A cluster's own, for other reasons.
        ({"MASTER_ADDR": "10.0.0.1"}, 1),
    ],
)
def test_how_many_machines_any_launcher_speaks_of(environ, count) -> None:
    assert fleet.count(environ) == count
