"""From GPUS, CPUS, PRECISION and ACCELERATE to the trainers: their command, printed and supervised.

    GPUS=4 PRECISION=bf16 python -m train.launch fit --config configs/cifar10.yaml

Bad input is found before any process starts. A verb that does not train or measure on the
launcher's processes is run here, as `python -m train` would.
"""

import os
import shlex
import signal
import sys
from types import FrameType
from typing import NoReturn, cast

from host import nodes, selection, visible
from host.errors import LockstepError, UsageError
from host.machine import Machine
from host.nodes import Nodes
from host.text import prepare_output, printable
from train import __main__ as command_line
from train import cli
from train.numerics import variables
from train.process import plan, supervisor
from train.verbs import Launched, Verb

_WAYS = ("SHARES", "STAGES")  # which trainers read themselves
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _early(number: int, _frame: FrameType | None) -> NoReturn:
    if sys.argv[1:2] == ["fit"]:  # nothing else would have been saved
        raise supervisor.too_early()
    sys.exit(128 + number)


def _nodes(verb: Verb) -> Nodes | None:
    """The machines that train together; everything else runs on one."""
    if verb.LAUNCHED and verb.KNOBS:
        return nodes.told(os.environ)
    if os.environ.get("NODES", "1") not in ("", "1"):
        raise UsageError(
            f"NODES={os.environ['NODES']} is for training: {verb.__name__.rpartition('.')[2]} runs"
            " on one machine",
            "leave NODES out",
        )
    return None


def _check_shares(verb: Verb) -> None:
    """Shares of lanes are for a training; a verb that has trainings of its own says so."""
    name, asked = verb.__name__.rpartition(".")[2], os.environ.get("SHARES")
    if os.environ.get("STAGES") and name in ("sweep", "tune"):
        raise UsageError(
            f"STAGES={os.environ['STAGES']} is for make train: {name} trains whole models",
            "leave STAGES out",
        )
    if asked and name in ("sweep", "tune"):
        raise UsageError(
            f"SHARES={asked} is for make train: {name} gives all processes as many lanes",
            "leave SHARES out",
        )


def main() -> int:
    """Launch the verb in argv."""
    prepare_output()
    try:
        before = {number: signal.signal(number, _early) for number in _SIGNALS}
        words = sys.argv[1:]
        command = cli.parse(words)
        selection.apply()
        machines = _nodes(command.verb)
        _check_shares(command.verb)
        if command.verb.LAUNCHED:
            verb = cast(Launched, command.verb)
            config = verb.experiment(command.options, command.knobs)
            planned = plan.of(config, os.environ, verb.lanes(config), machines)
            if config.portable:
                variables.hold()
                if visible.seen(Machine()) and planned.device == "cpu":
                    way = "; --numerics native takes GPUs" * command.verb.KNOBS
                    print(f"numerics: portable computes on the CPU{way}", file=sys.stderr)
            line = supervisor.command(planned, "train", words)
            ways = [f"{name}={os.environ[name]}" for name in _WAYS if os.environ.get(name)]
            # What a verb has to tell of a run stands on the standard output, alone.
            aside = sys.stdout if command.verb.KNOBS else sys.stderr
            shown = ["env", *ways, *line[line[0] == "env" :]] if ways else line
            print(printable(shlex.join(shown)), file=aside)
            return supervisor.supervise(line, alone=planned.single, trains=command.verb.KNOBS)
        for number, handler in before.items():
            signal.signal(number, handler)
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return command_line.main(words)


if __name__ == "__main__":
    sys.exit(main())
