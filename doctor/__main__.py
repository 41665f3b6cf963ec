"""`python3 -m doctor`: what is wrong with this machine, and how to mend it.

python3 -m doctor              a table, and what the environment or image sees, where there is one
python3 -m doctor --json       the same as a list of mappings
python3 -m doctor --quick      what stands in the way of training, in under a second; else silent
python3 -m doctor --record F   write down what was seen, to show to others

Exit code 0, or 6 where a check failed. Variables as for make: GPUS, CPUS, ACCELERATE, CUDA, ENGINE.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from container import gpus
from container.compose import settings
from container.driver import on_cpu
from container.errors import HostError
from doctor import finding, host, inner
from doctor.machine import Machine


def main() -> int:
    """Look, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m doctor", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print a list of mappings")
    parser.add_argument(
        "--quick", action="store_true", help="only what stops a training; or silence"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write down what was seen")
    parser.add_argument("--verify", metavar="CONFIG", help="will this experiment fit this machine")
    options = parser.parse_args()
    environ = settings()
    wrong: list[finding.Finding] = []
    try:
        environ.update(gpus.resolve(environ))
    except HostError as error:  # the checks may say why
        wrong = [finding.fail("GPUS", error.problem, "there is nothing to train on", error.fix)]
    machine = Machine(environ=environ)
    if options.quick:
        found = wrong + host.quick(machine, on_cpu(machine.environ))
        said = finding.lines(found)
        if said:
            print(said, file=sys.stderr)
    else:
        found = wrong + host.examine(machine)
        found += inner.examine(machine, options.verify, found)
        if options.json:
            print(finding.to_json(found))
        else:
            print(finding.table(found, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    if options.record:
        options.record.write_text(machine.record(), encoding="utf-8")
    return 6 if any(f.status == "fail" for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
