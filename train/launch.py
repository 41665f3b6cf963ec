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

from host import nvidia, selection
from host.errors import LockstepError
from host.machine import Machine
from host.text import any_encoding, printable
from train import __main__ as command_line
from train import cli
from train.numerics import variables
from train.process import plan, supervisor
from train.verbs import Launched

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _early(_number: int, _frame: FrameType | None) -> NoReturn:
    raise supervisor.too_early()


def main() -> int:
    """Launch the verb in argv."""
    any_encoding()
    try:
        before = {number: signal.signal(number, _early) for number in _SIGNALS}
        words = sys.argv[1:]
        command = cli.parse(words)
        selection.apply()
        if command.verb.LAUNCHED:
            verb = cast(Launched, command.verb)
            config = verb.experiment(command.options, command.knobs)
            planned = plan.of(config, os.environ, verb.lanes(config))
            if config.portable:
                variables.hold()
                if nvidia.seen(Machine()) and planned.device == "cpu":
                    way = "; --numerics native takes GPUs" * command.verb.KNOBS
                    print(f"numerics: portable computes on the CPU{way}", file=sys.stderr)
            line = supervisor.command(planned, "train", words)
            # What a verb has to tell of a run stands on the standard output, alone.
            aside = sys.stdout if command.verb.KNOBS else sys.stderr
            print(printable(shlex.join(line)), file=aside, flush=True)
            return supervisor.supervise(line)
        for number, handler in before.items():
            signal.signal(number, handler)
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return command_line.main(words)


if __name__ == "__main__":
    sys.exit(main())
