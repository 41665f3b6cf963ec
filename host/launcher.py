"""What a launcher (Accelerate's, torchrun) tells each of its processes, by environment variables.

https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import json
import os
from typing import Mapping

from host import nodes
from host.errors import UsageError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Processes, this one's number, its number on its machine, and processes there: Open MPI, MPICH and
# Intel MPI, and a step of srun.
_BARE = (
    (
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
ELASTIC = "LOCKSTEP_ELASTIC"
"""Set where machines may go and come: a file that says which run this launch trains."""

NETWORK = "LOCKSTEP_NETWORK"
"""Set where several machines train: what they have measured of the links between them, JSON."""


def rank() -> int:
    """This process's number among all; 0 where nobody launched it."""
    return int(os.environ.get("RANK") or 0)


def local_rank() -> int:
    """This process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def local_world() -> int:
    """Processes of this launch on this machine: they share its CPUs and its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def world() -> int | None:
    """Processes of this launch that were asked for; None where nobody says."""
    told = os.environ.get("WORLD_SIZE")
    return int(told) if told else None


def check_unheard(told: Mapping[str, str]) -> None:
    """Refuse what is said to make, where another launcher started this process.

    Args:
        told: the environment, without what .env says of it: that is for make.

    Raises:
        UsageError: nobody here would do it.
    """
    count = str(local_world())
    here = {
        "PRECISION": (os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower(),),
        "GPUS": (count, "0"),
        "CPUS": (count,),
        "ACCELERATE": (),
    }
    for name, done in here.items():
        said = (os.environ if name == "PRECISION" else told).get(name)
        if said and said.lower() not in done:
            where = "" if name in told else " of .env"
            raise UsageError(
                f"{name}={said}{where} is for make, and did not start this process",
                "python -m train.launch takes it too; or say it to your launcher, as accelerate"
                f" launch --mixed_precision bf16 --num_processes 2; or take it away{where}",
            )


def elastic() -> str | None:
    """The file of `ELASTIC`; None where all machines stay."""
    return os.environ.get(ELASTIC)


def network() -> dict[str, float] | None:
    """The links between the machines, as `train.nodes` measured them; None on one machine.

    Returns:
        `machines`, how many; `rate`, bytes a second over the slowest link; `delay`, seconds there
        and back over the slowest.
    """
    told = os.environ.get(NETWORK)
    return json.loads(told) if told else None


def adopt() -> None:
    """Take what MPI or Slurm says of this process for what a launcher would have said.

    For `mpirun -np 4 python -m train …` and `srun -n 4 python -m train …`: a process each, and no
    launcher of ours.

    Raises:
        UsageError: they do not say where the processes meet.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return
    for size, rank, local, local_size in _BARE:
        count = os.environ.get(size, "")
        if not (count.isdecimal() and int(count) > 1 and rank in os.environ):
            continue
        here = os.environ.get(local_size, "")
        if not here.isdecimal():  # Slurm's own has a form such as 4(x2)
            here = here.split("(")[0]
        if "MASTER_ADDR" not in os.environ and size.startswith("SLURM"):
            os.environ["MASTER_ADDR"] = nodes.first_host(os.environ.get("SLURM_STEP_NODELIST", ""))
        if not os.environ.get("MASTER_ADDR"):
            if here != count:
                raise UsageError(
                    f"{size} says {count} processes on several machines, and not where they meet",
                    "set MASTER_ADDR to the address of the first one's machine, the same for all",
                )
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        port = nodes.slurm_port(os.environ) if size.startswith("SLURM") else nodes.PORT
        os.environ.setdefault("MASTER_PORT", str(port))
        values = (os.environ[rank], os.environ.get(local, "0"), count, here or "1")
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        os.environ.update(zip(names, values))
        return
