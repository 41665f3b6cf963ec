"""GPUS= as a list (1,3) or `free`: which GPUs that are, by name.

    GPUS=free:2 python3 -m host.selection

prints variables for `env`, or one line of why not. Nothing is printed for a number or `all`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Mapping

from host import apps, exclusive, nvidia, settings, visible
from host.asked import MOST
from host.errors import HostError, LockstepError, UsageError
from host.machine import Machine

# MiB that a screen and its programs may take of a GPU that is free.
_SCREEN = 2048
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def resolve(environ: Mapping[str, str], machine: Machine | None = None) -> dict[str, str]:
    """GPUS and CUDA_VISIBLE_DEVICES for what GPUS asks; empty where it is a number, all or nothing.

    By UUID: CUDA counts the fastest GPU first, and nvidia-smi by place on the bus.

    Raises:
        HostError: there are no such GPUs, or too few are free.
    """
    asked = environ.get("GPUS", "")
    if asked in ("", "all", MOST) or asked.isdecimal():
        return {}
    machine = machine or Machine(environ=environ)
    gpus = visible.seen(machine)
    if environ.get("CPUS"):
        raise UsageError("GPUS and CPUS are both set", "set one of them")
    if re.fullmatch(r"\d+(,\d+)*,?", asked):
        chosen = [_numbered(number, gpus) for number in asked.strip(",").split(",")]
        if len({gpu.uuid for gpu in chosen}) < len(chosen):
            raise UsageError(f"GPUS={asked} names a GPU twice", "name each once")
    elif re.fullmatch(r"free(:[1-9]\d*)?", asked):
        chosen = _free(asked, gpus, machine)
    else:
        raise UsageError(
            f"GPUS={asked} is no choice of GPUs",
            "give a number (2), all, a list (1,3), free, or free:2",
        )
    uuids = ",".join(gpu.uuid for gpu in chosen)
    # As many of those that are free as can share the lanes: that is for the launcher to say.
    count = MOST if asked == "free" else str(len(chosen))
    return {"GPUS": count, _VISIBLE: uuids}


def apply() -> None:
    """Put what .env says, and the GPUs that GPUS chooses, into this process's environment.

    Raises:
        LockstepError: there are no such GPUs.
    """
    environ = settings.read()
    environ.update(resolve(environ))
    os.environ.update({n: environ[n] for n in (*settings.PASSED, _VISIBLE) if n in environ})


def _numbered(number: str, gpus: list[nvidia.Gpu]) -> nvidia.Gpu:
    for gpu in gpus:
        if gpu.index == number:
            return gpu
    there = ", ".join(gpu.index for gpu in gpus) or "none"
    raise HostError(
        f"there is no GPU {number} here, but {there}",
        "check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES",
    )


def _free(asked: str, gpus: list[nvidia.Gpu], machine: Machine) -> list[nvidia.Gpu]:
    """Those that nobody computes on, the emptiest first."""
    if not gpus:
        raise HostError(
            f"GPUS={asked}, and no GPU can be seen here",
            "check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, or train on the CPU: CPUS=1",
        )
    busy = {app.uuid for app in apps.computing(machine) if not apps.is_small(app)}
    busy |= {held.gpu.uuid for held in exclusive.held(machine, gpus)}
    free = [
        gpu for gpu in gpus if gpu.uuid not in busy and (gpu.number("memory.used") or 0) <= _SCREEN
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
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    print(" ".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
