"""Several machines that train together: what one of them is told, by make or by a cluster.

Ours are NODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, NODE_WAIT and NODE_SILENCE. Where NODES is not
set, what the cluster says counts: Kubeflow's PET_…, SkyPilot's, Slurm's in a step of srun, MPI's.
https://docs.pytorch.org/docs/stable/elastic/run.html (PET_…),
https://docs.skypilot.co/en/latest/running-jobs/distributed-jobs.html,
https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Mapping

from host import port
from host.errors import UsageError

OURS = ("NODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_WAIT", "NODE_SILENCE")
PORT = 29500
"""Where the nodes meet unless MASTER_PORT says another: torchrun's own choice."""
_SLURM_PORTS = range(15000, 30000)
"""Jobs of Slurm that share a node each have one of these: below those that systems hand out."""
WAIT, SILENCE = 600, 60


@dataclass(frozen=True)
class Nodes:
    """The machines of one training, as one of them sees them.

    Attributes:
        count: how many they are, 2 or more; at most, where fewer will do.
        rank: this one's number, from 0.
        address, port: where they meet: on the first of them.
        told_by: who says so, for people.
        processes: on each machine, as the cluster says; None where it does not.
        wait: seconds that one waits for another to start.
        silence: seconds without a word from another until the run ends.
        least: how many are enough: others may go, and come again; None: all of them.
    """

    count: int
    rank: int
    address: str
    port: int
    told_by: str
    processes: int | None = None
    wait: int = WAIT
    silence: int = SILENCE
    least: int | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The same in our variables."""
        count = f"{self.least}:{self.count}" if self.least else self.count
        values = (count, self.rank, self.address, self.port, self.wait, self.silence)
        return dict(zip(OURS, map(str, values)))

    @property
    def place(self) -> str:
        """Where they meet, for people and for torchrun."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def told(environ: Mapping[str, str]) -> Nodes | None:
    """The machines that `environ` speaks of; None where it is about this one alone.

    Raises:
        UsageError: what it says is incomplete, or contradicts itself.
    """
    if environ.get("NODES"):
        found = _ours(environ)
        return None if found is None else _checked(found, environ)
    if environ.get("NODE_RANK"):  # clusters set MASTER_ADDR for reasons of their own
        raise UsageError("NODE_RANK is set, and NODES is not", "say how many: NODES=2")
    if environ.get("LOCAL_RANK"):  # a launcher's own process
        return None
    for found in (_kubeflow(environ), _skypilot(environ), _slurm(environ), _mpi(environ)):
        if found is not None:
            return _checked(found, environ)
    return None


def _ours(environ: Mapping[str, str]) -> Nodes | None:
    least, count = _range(environ["NODES"])
    if count == 1:
        if environ.get("NODE_RANK", "0") != "0":
            raise UsageError(
                f"NODE_RANK={environ['NODE_RANK']} of NODES=1", "nodes are numbered from 0"
            )
        return None
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR") if not environ.get(name)]
    if missing:
        raise UsageError(
            f"NODES={count} without {' and '.join(missing)}",
            "on each machine: NODE_RANK= its number, from 0, and MASTER_ADDR= the address of"
            " number 0, the same on all",
        )
    rank = _number(environ, "NODE_RANK", 0)
    return Nodes(count, rank, environ["MASTER_ADDR"], _port(environ), "NODES", least=least)


def _range(text: str) -> tuple[int | None, int]:
    """How many are enough, if that is said, and how many there are: 4, or 2:4."""
    found = re.fullmatch("(?:([0-9]{1,6}):)?([0-9]{1,6})", text)
    least, most = (int(found[1]) if found[1] else None, int(found[2])) if found else (None, 0)
    if most == 0 or (least is not None and not 0 < least <= most):
        raise UsageError(
            f"NODES={text} is no number of machines",
            "give a number from 1, or two of them: NODES=2:4 goes on while 2 of 4 are there",
        )
    return (None if least == most else least), most


def _kubeflow(environ: Mapping[str, str]) -> Nodes | None:
    """The variables of torchrun itself, which Kubeflow's trainer sets in each pod."""
    count = environ.get("PET_NNODES", "")
    if count in ("", "1"):
        return None
    if not count.isdecimal():
        raise UsageError(f"PET_NNODES={count} is no number", "set NODES, NODE_RANK and MASTER_ADDR")
    each = environ.get("PET_NPROC_PER_NODE", "")
    return Nodes(
        int(count),
        _number(environ, "PET_NODE_RANK", 0),
        environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR", ""),
        _port(environ, "PET_MASTER_PORT" if environ.get("PET_MASTER_PORT") else "MASTER_PORT"),
        "PET_NNODES",
        int(each) if each.isdecimal() else None,
    )


def _skypilot(environ: Mapping[str, str]) -> Nodes | None:
    addresses = environ.get("SKYPILOT_NODE_IPS", "").split()
    if len(addresses) < 2:
        return None
    each = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "")
    return Nodes(
        len(addresses),
        _number(environ, "SKYPILOT_NODE_RANK", 0),
        addresses[0],
        _port(environ),
        "SKYPILOT_NODE_IPS",
        int(each) if each.isdecimal() and int(each) else None,
    )


def _slurm(environ: Mapping[str, str]) -> Nodes | None:
    """What srun tells each of its tasks: a batch script runs on one node, whatever the job has."""
    count, tasks = environ.get("SLURM_STEP_NUM_NODES", ""), environ.get("SLURM_STEP_NUM_TASKS", "")
    if not (count.isdecimal() and int(count) > 1):
        return None
    if tasks != count:
        raise UsageError(
            f"srun starts {tasks} tasks on {count} nodes, and each of them would start all of a"
            " node's processes",
            "use srun --ntasks-per-node=1; GPUS= or CPUS= says how many processes a node has",
        )
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    address = environ.get("MASTER_ADDR") or first_host(listed)
    return Nodes(
        int(count),
        _number(environ, "SLURM_NODEID", 0),
        address,
        _port({"MASTER_PORT": str(slurm_port(environ)), **environ}),
        "SLURM_STEP_NUM_NODES",
    )


def slurm_port(environ: Mapping[str, str]) -> int:
    """Where the tasks of a job of Slurm meet: a port of the job's own, since jobs share nodes."""
    job = environ.get("SLURM_JOB_ID", "")
    return _SLURM_PORTS[int(job) % len(_SLURM_PORTS)] if job.isdecimal() else PORT


def _mpi(environ: Mapping[str, str]) -> Nodes | None:
    """One process of mpirun a machine; it does not say where the first one is."""
    for size, rank, local in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
    ):
        count = environ.get(size, "")
        if not (count.isdecimal() and int(count) > 1):
            continue
        if environ.get(local, "1") != "1":
            raise UsageError(
                f"mpirun starts {environ[local]} of these on one machine, and each of them would"
                " start all of its processes",
                "start one on each (mpirun --map-by ppr:1:node); GPUS= or CPUS= says how many"
                " processes a machine has",
            )
        return Nodes(
            int(count),
            _number(environ, rank, 0),
            environ.get("MASTER_ADDR", ""),
            _port(environ),
            size,
        )
    return None


def first_host(listed: str) -> str:
    """The first name of a list as Slurm writes it: gpu[07-12,15]-a,big → gpu07-a."""
    found = re.match(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)", listed)
    if found is None:
        return ""
    before, numbers, after = found.groups()
    return before + re.split("[-,]", numbers or "")[0] + after


def _checked(nodes: Nodes, environ: Mapping[str, str]) -> Nodes:
    if nodes.rank >= nodes.count:
        raise UsageError(
            f"this is node {nodes.rank}, and {nodes.told_by} says {nodes.count} nodes",
            "nodes are numbered from 0",
        )
    if not nodes.address:
        raise UsageError(
            f"{nodes.told_by} says {nodes.count} nodes, and not where they meet",
            "set MASTER_ADDR to the address of node 0, the same on all",
        )
    if not re.fullmatch(r"[\w.:-]+", nodes.address):
        raise UsageError(f"MASTER_ADDR={nodes.address} is no address", "such as 10.0.0.1 or node-a")
    wait = _number(environ, "NODE_WAIT", 1) if environ.get("NODE_WAIT") else WAIT
    silence = _number(environ, "NODE_SILENCE", 5) if environ.get("NODE_SILENCE") else SILENCE
    return replace(nodes, wait=wait, silence=silence)


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        said = f"{name}={text}" if text else f"{name}, which is not set,"
        raise UsageError(f"{said} is no number from {least}", f"set {name} on each machine")
    return int(text)


def _port(environ: Mapping[str, str], name: str = "MASTER_PORT") -> int:
    text = environ.get(name) or str(PORT)
    if not port.is_one(text):
        raise UsageError(f"{name}={text} is no port", f"leave it out, which means {PORT}")
    return int(text)
