"""The inside half: what torch sees of the machine, in the environment or container.

python -m train doctor [--json] [--verify CONFIG]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable

from doctor import cuda, finding, speed, system, talk
from doctor.finding import Finding
from doctor.machine import Machine
from doctor.verify import examine

_ALL = (
    cuda.build, cuda.sees, cuda.libraries, cuda.kernels, cuda.precisions, cuda.peers,
    speed.links, speed.memory, speed.matrix, talk.collectives,
)  # fmt: skip
# What a container or a job is given, which may be less than the host has.
_GIVEN = (
    system.processors, system.memory, system.shared_memory, system.user_limits, system.disk,
    system.clock,
)  # fmt: skip


def _guarded(check: Callable[[Machine], Finding], machine: Machine) -> Finding:
    """What a check found; its own failure is a finding, and the others go on."""
    try:
        return check(machine)
    except Exception as error:  # whatever CUDA and its libraries raise on a machine that is unwell
        said = (str(error).splitlines() or [type(error).__name__])[0][:160]
        full = "out of memory" in said
        why = "somebody fills the GPU" if full else "what a training does may fail as well"
        fix = "nvidia-smi   # who is there" if full else "nvidia-smi; sudo dmesg | tail"
        return finding.fail(check.__name__.replace("_", " "), said, why, fix)


def main(as_json: bool, verify: Path | None, given: bool = True) -> int:
    """Look, print, and return the exit code: 0, or 6 where a check failed.

    Args:
        given: also look at what the host's half looks at: processors, memory, disk.
    """
    machine = Machine()
    checks = (*(_GIVEN if given else ()), *_ALL)
    found: list[Finding] = [_guarded(check, machine) for check in checks]
    if verify is not None:
        found += examine(verify, machine)
    if as_json:
        print(finding.to_json(found))
    else:
        print(finding.table(found, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 6 if any(f.status == "fail" for f in found) else 0
