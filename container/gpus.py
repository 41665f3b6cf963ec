"""GPUS= as a list (1,3) or `free`: which GPUs that are, by name.

    GPUS=free:2 python3 -m container.gpus

prints variables for `env`, or one line of why not. Nothing is printed for a number or `all`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Mapping

from container import driver as drivers
from container.errors import HostError
from doctor import smi
from doctor.machine import Machine

# MiB that a screen and its programs may take of a GPU that is free.
_SCREEN = 2048


def resolve(environ: Mapping[str, str], machine: Machine | None = None) -> dict[str, str]:
    """GPUS and CUDA_VISIBLE_DEVICES for what GPUS asks; empty where it is a number, all or nothing.

    By UUID: CUDA counts the fastest GPU first, and nvidia-smi by place on the bus.

    Raises:
        HostError: there are no such GPUs, or too few are free.
    """
    asked = environ.get("GPUS", "")
    if asked in ("", "all") or asked.isdigit():
        return {}
    machine = machine or Machine(environ=environ)
    _, listed = smi.ask(machine)
    here = drivers.look(machine)
    seen = {gpu.uuid for gpu in here.gpus} if here else set()
    gpus = [gpu for gpu in listed if gpu.row["uuid"] in seen]
    if re.fullmatch(r"\d+(,\d+)*,?", asked):
        chosen = [_numbered(number, gpus) for number in asked.strip(",").split(",")]
        if len({gpu.row["uuid"] for gpu in chosen}) < len(chosen):
            raise HostError(f"GPUS={asked} names a GPU twice", "name each once", 2)
    elif re.fullmatch(r"free(:[1-9]\d*)?", asked):
        chosen = _free(asked, gpus, machine)
    else:
        raise HostError(
            f"GPUS={asked} is no choice of GPUs",
            "give a number (2), all, a list (1,3), free, or free:2",
            2,
        )
    uuids = ",".join(gpu.row["uuid"] for gpu in chosen)
    # As many of those that are free as can share the lanes: that is for the launcher to say.
    count = "" if asked == "free" else str(len(chosen))
    return {"GPUS": count, "CUDA_VISIBLE_DEVICES": uuids}


def _numbered(number: str, gpus: list[smi.Gpu]) -> smi.Gpu:
    for gpu in gpus:
        if gpu.row["index"] == number:
            return gpu
    there = ", ".join(gpu.row["index"] for gpu in gpus) or "none"
    raise HostError(
        f"there is no GPU {number} here, but {there}",
        "check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES",
    )


def _free(asked: str, gpus: list[smi.Gpu], machine: Machine) -> list[smi.Gpu]:
    """Those that nobody computes on, the emptiest first."""
    busy = {app.uuid for app in smi.apps(machine)}
    free = [
        gpu
        for gpu in gpus
        if gpu.row["uuid"] not in busy and (gpu.number("memory.used") or 0) <= _SCREEN
    ]
    free.sort(key=lambda gpu: gpu.number("memory.used") or 0)
    wanted = int(asked.split(":")[1]) if ":" in asked else max(1, len(free))
    if len(free) < wanted:
        raise HostError(
            f"GPUS={asked}, and {len(free) or 'none'} of {len(gpus)} GPUs"
            f" {'is' if len(free) == 1 else 'are'} free",
            "see who is there: make doctor; or wait, or GPUS= with numbers",
        )
    return free[:wanted]


def main() -> int:
    """Print the variables."""
    try:
        found = resolve(os.environ)
    except HostError as error:
        print(error, file=sys.stderr)
        return error.code
    print(" ".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
