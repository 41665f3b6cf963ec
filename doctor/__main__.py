"""`python3 -m doctor`: what is wrong with this machine, and how to mend it.

python3 -m doctor              a table, and what the environment or image sees, where there is one
python3 -m doctor --json       the same as a list of mappings, of the schema that each names
python3 -m doctor --markdown   the same as text to paste into an issue, with nothing private in it
python3 -m doctor --quick      what stands in the way of training, in under a second; else silent
python3 -m doctor --record F   write down what was seen, to show to others
python3 -m doctor --verify C   will this experiment fit this machine
python3 -m doctor --verify C --on "RTX 3090"   will it fit a card that is not here; or --on 8GB
python3 -m doctor --stress 10  compute for ten minutes, and compare each result with the right one
python3 -m doctor --like RUN   can this machine give the bits of that run

Exit code 0, 6 where a check failed, 2 where a variable has no sense. Variables as for make: GPUS,
CPUS, ACCELERATE, CUDA, ENGINE.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from doctor import bridge, checks, finding, markdown
from host import asked, docker, plan, selection, settings
from host.errors import HostError, LockstepError, UsageError, nearest
from host.machine import Machine
from host.text import prepare_output

# Options, and those that would not be looked at with them.
_ALONE = {
    "--quick": ("--verify", "--like", "--stress", "--markdown", "--on"),
    "--on": ("--like", "--stress", "--record"),
    "--markdown": ("--json",),
}
_OF_MAKE = {"--verify": " (make: CONFIG=)", "--like": " (make: RUN=)"}
_LONGEST = 10_080  # minutes: a week


def main() -> int:
    """Look, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m doctor", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print a list of mappings")
    parser.add_argument("--markdown", action="store_true", help="print text for an issue")
    parser.add_argument(
        "--quick", action="store_true", help="only what stops a training; or silence"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write down what was seen")
    parser.add_argument("--verify", metavar="CONFIG", help="will this experiment fit this machine")
    parser.add_argument("--on", metavar="CARD", help="with --verify: on a card that is not here")
    parser.add_argument("--like", metavar="RUN", help="can this machine give the bits of that run")
    parser.add_argument("--stress", metavar="MINUTES", help="compute, and compare each result")
    options, unknown = parser.parse_known_args()
    prepare_output()
    if unknown:
        return _refused(_unknown(unknown[0], parser.format_help()))
    wrong: list[finding.Finding] = []
    try:
        _check(options)
        environ = settings.read()
        docker.check(environ.get("ENGINE") or "auto")
        environ.update(selection.resolve(environ) if options.on is None else {})
        on_cpu = plan.on_cpu(environ)
        if not (on_cpu or options.quick or options.on):  # else who trains says it
            asked.check_count(environ)
    except UsageError as error:
        return _refused(error)
    except HostError as error:  # the checks may say why
        environ.update(GPUS="all", CPUS="")
        wrong = [finding.fail("GPUS", error.problem, "there is nothing to train on", error.fix)]
    machine = Machine(environ=environ)
    if options.on is not None:
        found = bridge.examine(machine, options.verify, None, [], on=options.on)
    elif options.quick:
        found = wrong + checks.quick(machine)
        said = finding.lines(found)
        if said and not options.json:
            print(said, file=sys.stderr)
    else:
        found = wrong + checks.examine(machine)
        minutes = _minutes(options.stress)
        found += bridge.examine(machine, options.verify, options.like, found, minutes=minutes)
    if options.json:
        print(finding.to_json(found))
    elif options.markdown:
        print(markdown.report(machine, found))
    elif not options.quick:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(finding.table(found, colour, shutil.get_terminal_size().columns))
    if options.record:
        return _recorded(machine, options.record) or finding.code(found)
    return finding.code(found)


def _unknown(word: str, help_text: str) -> UsageError:
    knob = "an experiment's knobs go into its file (--verify FILE)"
    fix = knob if word.startswith("--") else "take it away: it looks at everything"
    near = nearest(word, help_text.split(), like=0.8)
    return UsageError(f"unknown argument {word}{near}", f"{fix}; --help says what it takes")


def _check(options: argparse.Namespace) -> None:
    """See that what is asked for can be looked at here.

    Raises:
        UsageError: it cannot.
    """
    if os.name != "posix":
        raise UsageError("this is Windows itself", "use WSL 2: wsl --install, and make there")
    if options.on is not None and options.verify is None:
        raise UsageError(
            "--on asks of an experiment",
            "name one: make doctor CONFIG=configs/cifar10.yaml, or --verify configs/cifar10.yaml",
        )
    set_ = {f"--{name}" for name, value in vars(options).items() if value not in (None, False)}
    for option, others in _ALONE.items():
        idle = [other for other in others if {option, other} <= set_]
        if idle:
            said = idle[0] + _OF_MAKE.get(idle[0], "")
            raise UsageError(f"{said} does nothing with {option}", "take one of them away")
    _minutes(options.stress)
    for given, what in ((options.verify, "experiment"), (options.like, "run")):
        if given is not None and not Path(given).exists():
            raise UsageError(f"there is no {what} {given}", "look at the path")


def _minutes(words: str | None) -> float:
    """How long to compute; 0 where that is not asked for."""
    if words is None:
        return 0
    with suppress(ValueError):
        if 0 < float(words) <= _LONGEST:
            return float(words)
    raise UsageError(
        f"--stress {words} is no number of minutes up to {_LONGEST}", "ten are a start: --stress 10"
    )


def _recorded(machine: Machine, file: Path) -> int:
    """Write down what was seen; 0, or the exit code where that cannot be."""
    try:
        file.write_text(machine.record(), encoding="utf-8")
    except OSError as error:
        problem = f"{file} cannot be written: {error.strerror}"
        return _refused(UsageError(problem, "name a file in a folder that is there"))
    return 0


def _refused(error: LockstepError) -> int:
    print(error.line(), file=sys.stderr)
    return error.code


if __name__ == "__main__":
    sys.exit(main())
