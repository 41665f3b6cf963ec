"""Where trials run that run at once: each has its share of the GPUs, or of the CPUs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from host import limits, nvidia, plan
from host.errors import UsageError
from host.machine import Machine
from train.config import Config

_ASKED = ("GPUS", "CPUS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Slot:
    """A place for one trial at a time.

    Attributes:
        environ: what its processes are started with.
        cpus: that they keep to, which tells them how many threads to start; None: all.
    """

    environ: dict[str, str]
    cpus: frozenset[int] | None


def slots(config: Config, environ: Mapping[str, str], workers: int | None) -> list[Slot]:
    """The places that there are: what GPUS or CPUS ask for is shared out evenly.

    Args:
        workers: how many; None: one a GPU, or one on the CPU.

    Raises:
        UsageError: it cannot be shared evenly.
        HostError: the machine has not what is asked for.
    """
    machine = Machine(environ=environ)
    gpus = nvidia.seen(machine)
    whole = plan.make(environ, len(gpus), portable=config.portable)
    on_cpu = whole.device == "cpu"
    count = workers or (1 if on_cpu else whole.processes)
    if on_cpu and not (environ.get("CPUS") or environ.get("ACCELERATE")):
        each = 1
    elif whole.processes % count:
        what = "process" if on_cpu else "GPU"
        es = "" if whole.processes == 1 else "es" if on_cpu else "s"
        raise UsageError(
            f"--workers {count} cannot share {whole.processes} {what}{es} evenly",
            f"say --workers {_divisor(whole.processes, count)}, or another"
            f" {'CPUS' if on_cpu else 'GPUS'}",
        )
    else:
        each = whole.processes // count
    rest = {name: value for name, value in environ.items() if name not in _ASKED}
    if on_cpu:
        hidden = {"CUDA_VISIBLE_DEVICES": environ.get("CUDA_VISIBLE_DEVICES")}
        kept = {name: value for name, value in hidden.items() if value is not None}
        own = {**rest, **kept, "CPUS": str(each)}
        return [Slot(own, cpus) for cpus in _cpus(count)]
    return [
        Slot(
            {
                **rest,
                "GPUS": str(each),
                "CUDA_VISIBLE_DEVICES": ",".join(g.uuid for g in gpus[n * each : (n + 1) * each]),
            },
            None,
        )
        for n in range(count)
    ]


def _divisor(whole: int, most: int) -> int:
    return max(n for n in range(1, whole + 1) if whole % n == 0 and n <= most)


def _cpus(count: int) -> list[frozenset[int] | None]:
    """A share of the CPUs for each; all for all, where there is one place, or fewer CPUs, or where
    a quota, and not a list, says how many there are.
    """
    every = sorted(os.sched_getaffinity(0))
    if count == 1 or len(every) < count or limits.cpus() < len(every):
        return [None] * count
    ends = [n * len(every) // count for n in range(count + 1)]
    return [frozenset(every[low:high]) for low, high in pairwise(ends)]
