"""What a step would take on other numbers of machines: a model, from one run's measured parts.

A step is a process's own part (its data, its lanes) and what of the sums of gradients is not done
by the time its backward pass is. In a sum over N processes each bucket goes log2 N times to another
process, once a way has told that it is ready; where that one is on another machine, all processes
of a machine share its link. Exchanges inside a machine are taken to be free. The vote whether to
stop goes its round meanwhile, and counts where it takes longer.
"""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from host.errors import CheckpointError, UsageError
from train.record import documents, metrics

# Of a lane's passes, what the backward pass takes: it computes two gradients for one output.
_BACKWARD = 2 / 3


@dataclass(frozen=True)
class Link:
    """Between two machines.

    Attributes:
        rate: bytes a second each way.
        delay: seconds there and back.
    """

    rate: float
    delay: float


@dataclass(frozen=True)
class Work:
    """A process's part of a step.

    Attributes:
        own: seconds of data, passes and update of the slowest process.
        lanes: how many of them it runs.
        buckets: bytes of each sum; the last one waits for the whole backward pass.
        gpu: whether it is a GPU that computes.
        each: processes on a machine.
    """

    own: float
    lanes: int
    buckets: tuple[int, ...]
    gpu: bool
    each: int

    def communication(self, processes: int, link: Link) -> float:
        """Seconds of a step in which a process waits for others."""
        machines = -(-processes // self.each)
        if machines == 1:
            return 0.0
        backward = _BACKWARD * self.own / self.lanes
        *early, rest = (self._sum(size, processes, link) for size in self.buckets)
        now = 0.0
        for number, seconds in enumerate(early, 1):
            now = max(now, backward * number / len(early)) + seconds
        # The library's ring: each process hears of each other's vote in turn.
        vote = (processes - 1) * link.delay
        # A GPU still computes what its process has told it before.
        vote -= self.own if self.gpu else 0.0
        return max(max(now - backward, 0.0) + rest, vote)

    def _sum(self, size: int, processes: int, link: Link) -> float:
        """Seconds in which a bucket becomes its sum."""
        rounds = (processes - 1).bit_length() - (self.each - 1).bit_length()
        return rounds * (link.delay + size * self.each / link.rate)


@dataclass(frozen=True)
class Run:
    """A run as it was measured.

    Attributes:
        step, communication: seconds, in the median over its health records.
        pictures: of a step.
        link: None where it trained on one machine.
    """

    work: Work
    processes: int
    step: float
    communication: float
    pictures: int
    link: Link | None


def on(work: Work, each: int) -> Work:
    """The same with so many processes on a machine.

    Raises:
        UsageError: it is no power of two.
    """
    if each < 1 or each & (each - 1):
        raise UsageError(f"--each {each}: processes share lanes by halves", "take 1, 2, 4, 8 or so")
    return replace(work, each=each)


def measured(path: Path) -> Run:
    """What a run has measured.

    Raises:
        CheckpointError: its files cannot be read.
        UsageError: there is too little in it, or DDP made its sums.
    """
    record, rows = documents.record(path) or {}, []
    attempts = record.get("attempts") or [{}]
    begun = attempts[-1].get("from_step", 0)
    try:
        rows = [row for row in metrics.read(path) if row["kind"] == "health"]
        # Other attempts may have had other machines.
        rows = [row for row in rows if "step_seconds" in row and row["step"] > begun]
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path / metrics.NAME}: {error.strerror}", "restore it from a copy"
        ) from error
    if not record or not rows:
        raise UsageError(
            f"{path} has no figures of its steps",
            "name a run of this version with 20 steps or more",
        )
    hardware = record["hardware"]
    if hardware.get("stages", 1) > 1 or hardware.get("sharded"):
        spread = (
            "its weights were sharded" if hardware.get("sharded") else "its model was in stages"
        )
        raise UsageError(
            f"{path}: {spread}, and what is known here is how whole models are summed",
            "name a run without STAGES and ACCELERATE=fsdp",
        )
    if not record["exchanged"]:
        raise UsageError(
            f"{path}: at {record['config'].get('reproducibility')}, the network's library sums as"
            " it likes",
            "the model knows the sums of --reproducibility lockstep",
        )
    moved = any(len({each.get("lanes") for each in row.get("processes", [])}) > 1 for row in rows)
    if moved or len(set(record.get("shares", []))) > 1:  # a record of before has equal ones
        raise UsageError(
            f"{path}: its processes ran {'+'.join(map(str, record['shares']))} lanes"
            + ", and then others" * moved,
            "the model knows equal shares: name a run that had them",
        )
    told, processes = record["network"], record["world_size"]
    hosts = {each["host"] for each in rows[-1].get("processes", [])}
    # Where machines may go and come, or another launcher started them, nobody counted them.
    machines = int(told["machines"]) if told else max(1, len(hosts))
    last = [_slowest(row) for row in rows]
    own = statistics.median(own for own, _, _ in last)
    work = Work(
        own,
        record["accumulation"],
        tuple(record["exchanged"]),
        record["hardware"]["type"] == "cuda",
        max(1, processes // machines),
    )
    step, communication = (statistics.median(row[n] for row in last) for n in (1, 2))
    link = Link(told["rate"], told["delay"]) if told else None
    return Run(work, processes, step, communication, record["config"]["batch_size"], link)


def _slowest(row: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of a step: of the slowest process's own part, in all, and of what it waits."""
    processes = row.get("processes") or [row]
    one = min(processes, key=lambda each: each["communication_share"])
    step = one["step_seconds"]
    return step * (1 - one["communication_share"]), step, step * one["communication_share"]
