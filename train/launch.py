"""From GPUS, CPUS, PRECISION and ACCELERATE to an `accelerate launch`, printed and supervised.

    GPUS=4 PRECISION=bf16 python -m train.launch fit --config configs/cifar10.yaml

Bad input is found before any process starts. A verb that does not train or measure on the
launcher's processes is run here, as `python -m train` would.
"""

import os
import shlex
import signal
import sys
from types import FrameType
from typing import NoReturn

from host import plan, selection
from host.errors import LockstepError
from train import __main__ as command_line
from train import cli
from train.process import supervisor
from train.verbs import fit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _early(_number: int, _frame: FrameType | None) -> NoReturn:
    raise supervisor.too_early()


def main() -> int:
    """Launch the verb in argv."""
    words = sys.argv[1:]
    try:
        before = {number: signal.signal(number, _early) for number in _SIGNALS}
        command = cli.parse(words)
        selection.apply()
        if command.verb.LAUNCHED:
            knobbed = fit.resolved(command.options, command.knobs) if command.verb.KNOBS else None
            planned = plan.for_machine(os.environ, knobbed.lanes if knobbed else None)
            line = supervisor.command(planned, "train", words)
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    if not command.verb.LAUNCHED:
        for number, handler in before.items():
            signal.signal(number, handler)
        return command_line.main(words)
    print(shlex.join(line), flush=True)
    return supervisor.supervise(line)


if __name__ == "__main__":
    sys.exit(main())
