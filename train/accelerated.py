"""`accelerate launch` without torch's page about trainers that failed: they say it in a line.

python -m train.accelerated --config_file configs/accelerate/multi_gpu.yaml -m train fit …
"""

import signal
import sys

from accelerate.commands.launch import main as launch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from host import errors
from train.process import quiet


def main() -> int:
    """Launch what argv says; returns the exit code of the trainer that failed first, or 0."""
    quiet.launchers()
    try:
        launch()
    except ChildFailedError as failed:
        return _said(failed)
    except SignalException as signalled:
        return 128 + signalled.sigval
    return 0


def _said(failed: ChildFailedError) -> int:
    """Print which trainers ended without a word of why; returns the code of the first."""
    codes = {rank: failure.exitcode for rank, failure in sorted(failed.failures.items())}
    # Ours come with a line. The launcher ends with SIGTERM those that are left.
    silent = {
        rank: code
        for rank, code in codes.items()
        if code not in (errors.of(code).code, -signal.SIGTERM)
    }
    for rank, code in silent.items():
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"code {code}"
        print(f"process {rank} ended with {how}", file=sys.stderr, flush=True)
    first = next(iter(silent), failed.get_first_failure()[0])
    return codes[first] if codes[first] >= 0 else 128 - codes[first]


if __name__ == "__main__":
    sys.exit(main())
