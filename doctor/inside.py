"""The inside half: what torch sees of the machine, in the environment or container.

python -m train doctor [--json] [--verify CONFIG]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def main(as_json: bool, verify: Path | None, given: bool = True) -> int:
    """Look, print, and return the exit code: 0, or 6 where a check failed.

    Args:
        given: also look at what the host's half looks at: processors, memory, disk.
    """
    machine = Machine()
    found: list[Finding] = [check(machine) for check in (*(_GIVEN if given else ()), *_ALL)]
    if verify is not None:
        found += examine(verify, machine)
    if as_json:
        print(finding.to_json(found))
    else:
        print(finding.table(found, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 6 if any(f.status == "fail" for f in found) else 0
