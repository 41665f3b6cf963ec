"""What CUDA_VISIBLE_DEVICES makes of the GPUs: hidden, cut short, in another order."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, warn
from host import limits, nvidia, visible
from host.machine import Machine


def other_order(machine: Machine) -> Finding | None:
    """CUDA_VISIBLE_DEVICES takes CUDA's numbers, which are not nvidia-smi's among unlike GPUs.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (environment variables): the fastest is
    the first, unless CUDA_DEVICE_ORDER says otherwise.
    """
    asked = machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = nvidia.ask(machine)[1]
    unlike = len({gpu.name for gpu in gpus}) > 1
    by_bus = machine.environ.get("CUDA_DEVICE_ORDER") in ("PCI_BUS_ID", "FASTEST_FIRST")
    few = len(asked.split(",")) < len(gpus)
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", asked) or by_bus or not unlike or not few:
        return None
    # The first on the bus may be the fastest as well.
    ranks = [gpu.capability or (0, 0) for gpu in gpus]
    falling = all(a > b for a, b in zip(ranks, ranks[1:]))
    if falling or (asked == "0" and all(other < ranks[0] for other in ranks[1:])):
        return None
    return warn(
        "variables",
        f"CUDA_VISIBLE_DEVICES={asked} takes CUDA's numbers: its 0 is the fastest GPU",
        "nvidia-smi counts by the bus: another card may be taken than the one that was meant",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID, which counts as nvidia-smi does; or name UUIDs:"
        " nvidia-smi -L",
    )


def cut_short(machine: Machine) -> Finding | None:
    """CUDA_VISIBLE_DEVICES names one that is not there, and those behind it are not seen."""
    asked = machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in asked.split(",")]
    seen = len(visible.seen(machine))
    hides = asked.strip() in visible.HIDDEN and "CUDA_VISIBLE_DEVICES" in machine.environ
    if hides and not machine.environ.get("CPUS"):
        job = limits.in_job(machine.environ, machine.root)
        empty = job and not limits.job_gpus(machine.environ)
        return warn(
            "variables",
            f"CUDA_VISIBLE_DEVICES={asked}",
            "it hides every GPU: CUDA finds none, and it trains on the CPU",
            "ask the scheduler for one: sbatch --gres=gpu:1; or, if it is meant so, CPUS=1"
            if empty
            else "unset CUDA_VISIBLE_DEVICES; or, if it is meant so, CPUS=1",
        )
    if re.fullmatch(r"\d+(?:-\d+|(?:[;: ]\d+)+)", asked) and len(nvidia.ask(machine)[1]) > 1:
        return warn(
            "variables",
            f"CUDA_VISIBLE_DEVICES={asked}",
            "CUDA reads the first number, and no range and no other sign: it sees one GPU",
            "numbers with commas between them: CUDA_VISIBLE_DEVICES=0,1,2,3",
        )
    if not 0 < seen < len(names) or not all(name.isdecimal() for name in names):
        return None
    if seen == len(nvidia.ask(machine)[1]) and len({*names}) == len(names):
        return None  # of machines that have more: all that are here are seen
    instances = machine.run("nvidia-smi", "-L").out.count("\n  MIG ")
    if all(int(name) < instances for name in names):  # a job's, of which each process takes one
        return None
    return fail(
        "variables",
        f"CUDA_VISIBLE_DEVICES={asked} names {len(names)} GPUs, and CUDA sees {seen}",
        f"it stops at the first that is not there or is named twice: {names[seen]}",
        "name those that are there (nvidia-smi -L), or unset it",
    )
