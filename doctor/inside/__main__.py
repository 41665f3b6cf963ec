"""The inside half: what torch sees of the machine, in the environment or container.

python -m doctor.inside [--json] [--verify CONFIG [--on CARD]] [--like RUN] [--stress MINUTES]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Callable

from doctor import clock, disks, finding, shm, system, ulimits
from doctor.finding import Finding
from doctor.inside import collectives, devices, elsewhere, like, speed, stress
from doctor.inside.verify import examine
from host import dotenv
from host.errors import UsageError
from host.machine import Machine
from host.text import prepare_output

_ALL = (
    devices.build,
    devices.sees,
    devices.libraries,
    devices.kernels,
    devices.precisions,
    devices.peers,
    speed.links,
    speed.memory,
    speed.matrix,
    collectives.collectives,
)
# What a container or a job is given, which may be less than the host has.
_GIVEN = (
    system.processors,
    system.memory,
    shm.shared_memory,
    ulimits.examine,
    disks.disk,
    clock.clock,
    disks.owner,
)


def _guarded(check: Callable[..., Finding], *given: object) -> Finding:
    """What a check found; its own failure is a finding, and the others go on."""
    try:
        return check(*given)
    except Exception as error:  # whatever CUDA and its libraries raise on a machine that is unwell
        said = (str(error).splitlines() or [type(error).__name__])[0][:160]
        full = "out of memory" in said
        why = "somebody fills the GPU" if full else "what a training does may fail as well"
        fix = "nvidia-smi   # who is there" if full else "nvidia-smi; sudo dmesg | tail"
        return finding.fail(check.__name__.replace("_", " "), said, why, fix)


def look(
    verify: Path | None, *, run: Path | None = None, given: bool = True, minutes: float = 0
) -> list[Finding]:
    """Every check.

    Args:
        verify: an experiment to look at as well.
        run: whether this machine can give the bits of that one.
        given: also look at what the host's half looks at: processors, memory, disk.
        minutes: of products after all that; 0 for none.
    """
    machine = Machine()
    found = [_guarded(check, machine) for check in (*(_GIVEN if given else ()), *_ALL)]
    found += examine(verify, machine) if verify is not None else []
    found += like.examine(run) if run is not None else []
    return found + ([_guarded(stress.stress, minutes)] if minutes else [])


def main(argv: list[str] | None = None) -> int:
    """Look, print, and return the exit code: 0, or 6 where a check failed."""
    parser = argparse.ArgumentParser(prog="python -m doctor.inside", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print a list of mappings")
    parser.add_argument(
        "--verify", type=Path, metavar="CONFIG", help="also: will this experiment fit this machine"
    )
    parser.add_argument(
        "--like", type=Path, metavar="RUN", help="also: can this machine give the bits of that run"
    )
    parser.add_argument("--stress", type=float, default=0, metavar="MINUTES", help="also: compute")
    parser.add_argument("--on", metavar="CARD", help="with --verify: on a card that is not here")
    parser.add_argument("--cards", default="1", metavar="N", help="with --on: how many")
    parser.add_argument("--half", action="store_true", help="with --on: mixed precision")
    options = parser.parse_args(argv)
    prepare_output()
    try:
        dotenv.load(Path(".env"))  # NCCL's variables among it
    except UsageError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    if options.on is not None:
        found = elsewhere.examine(options.verify, options.on, options.cards, half=options.half)
    else:
        found = look(options.verify, run=options.like, minutes=options.stress)
    if options.json:
        print(finding.to_json(found))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(finding.table(found, colour, shutil.get_terminal_size().columns))
    return finding.code(found)


if __name__ == "__main__":
    sys.exit(main())
