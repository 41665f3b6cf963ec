"""Where trials run that run at once: each has its share of the GPUs, or of the CPUs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from host import TOLD, limits, plan, visible
from host.errors import UsageError
from host.machine import Machine
from train.config import Config

# What a place says of its own, and what was said of the whole sweep.
_OWN = ("GPUS", "CPUS", "CUDA_VISIBLE_DEVICES", TOLD)


@dataclass(frozen=True)
class Slot:
    """A place for one trial at a time.

    Attributes:
        environ: what its processes are started with.
        cpus: that they keep to, which tells them how many threads to start; None: all.
        decides: what decides the bits of its trials, by the name that people know.
    """

    environ: dict[str, str]
    cpus: frozenset[int] | None
    decides: dict[str, str | int]


def slots(config: Config, environ: Mapping[str, str], workers: int | None) -> list[Slot]:
    """The places that there are: what GPUS or CPUS ask for is shared out evenly.

    Args:
        workers: how many; None: one a GPU, or one on the CPU.

    Raises:
        UsageError: it cannot be shared evenly.
        HostError: the machine does not have what is asked for.
    """
    gpus = visible.seen(Machine(environ=environ))
    whole = plan.make(environ, len(gpus), portable=config.portable)
    on_cpu = whole.device == "cpu"
    count = workers or (1 if on_cpu else whole.processes)
    if on_cpu and not (environ.get("CPUS") or environ.get("ACCELERATE")):
        each = 1
    elif whole.processes % count:
        raise _uneven(count, whole.processes, on_cpu=on_cpu)
    else:
        each = whole.processes // count
    rest = {name: value for name, value in environ.items() if name not in _OWN}
    decides: dict[str, str | int] = {"device": whole.device, "PRECISION": whole.precision}
    if not config.lockstep:
        decides |= {"processes a trial": each}
    made = []
    for number, cpus in enumerate(_cpus(count) if on_cpu else [None] * count):
        if on_cpu:
            hidden = environ.get("CUDA_VISIBLE_DEVICES")
            own = {"CPUS": str(each), **({} if hidden is None else {_OWN[2]: hidden})}
        else:
            names = [gpu.uuid for gpu in gpus[number * each : (number + 1) * each]]
            own = {"GPUS": str(each), "CUDA_VISIBLE_DEVICES": ",".join(names)}
        threads = {}
        if on_cpu and not config.lockstep:
            threads = {"CPUs a trial": len(cpus) if cpus else limits.cpus()}
        made.append(Slot({**rest, **own}, cpus, {**decides, **threads}))
    return made


def _uneven(count: int, whole: int, *, on_cpu: bool) -> UsageError:
    what = "process" if on_cpu else "GPU"
    several = "" if whole == 1 else "es" if on_cpu else "s"
    fits = max(n for n in range(1, whole + 1) if whole % n == 0 and n <= count)
    return UsageError(
        f"--workers {count} cannot share {whole} {what}{several} evenly",
        f"say --workers {fits}, or another {'CPUS' if on_cpu else 'GPUS'}",
    )


def _cpus(count: int) -> list[frozenset[int] | None]:
    """A share of the CPUs for each, all of the same size; all for all, where there is one place, or
    fewer CPUs, or where a quota, and not a list, says how many there are.
    """
    every = sorted(os.sched_getaffinity(0))
    each = len(every) // count
    if count == 1 or not each or limits.cpus() < len(every):
        return [None] * count
    return [frozenset(every[low:high]) for low, high in pairwise(range(0, count * each + 1, each))]
