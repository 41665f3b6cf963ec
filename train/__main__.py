"""`python -m train VERB`: the command line, and the one place that turns errors into exit codes."""

import importlib.util
import os
import re
import sys
import time
import traceback
from pathlib import Path

if not all(map(importlib.util.find_spec, ("torch", "psutil", "pydantic_settings", "dotenv"))):
    print(
        f"error: PyTorch and its like are not installed for {sys.executable} → use make, or"
        " .venv/bin/python, which `make train ENGINE=local` makes",
        file=sys.stderr,
    )
    sys.exit(6)

from host import dotenv, garbage, keys, launcher
from host.errors import LockstepError, LostPeers, Stopped
from host.text import prepare_output
from train import cli
from train.numerics import variables
from train.process import leaving, outcome, parent

_LATER = 2.0
_UNREAD = "warning: nobody reads what the training prints any more; it goes on, and Ctrl-C stops it"


def main(argv: list[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    started = argv is None  # as a program, and not called by another
    if started:
        _begin()
        garbage.seldom()
        prepare_output(_UNREAD if sys.argv[1:2] == ["fit"] else "")
    words = sys.argv[1:] if argv is None else argv
    # torchrun takes --run for the beginning of its own --run-path, unless a -- stands before it.
    # torch.distributed.launch puts a word before ours, which says what LOCAL_RANK says.
    words = [word for word in words if word != "--"]
    if words and re.fullmatch("--local[-_]rank=[0-9]+", words[0]) and "LOCAL_RANK" in os.environ:
        del words[0]
    told = dict(os.environ)
    try:
        # Before anything reads HF_HOME or WANDB_API_KEY; what the environment sets already stays.
        dotenv.load(Path(".env"))
        keys.load()
        command = cli.parse(words)
        # Our own supervisor has said all that is to be said.
        if started and command.verb.LAUNCHED and parent.SUPERVISOR not in os.environ:
            launcher.adopt()
            if command.verb.KNOBS:  # of a run that is there, its precision is known
                launcher.check_unheard(told)
        parent.end_with_launcher()
        command.run()
    except LockstepError as error:
        if "--debug" in words:
            traceback.print_exc()
        _report(error)
        # All processes stop together. Their launcher would call that a failure, in fifty lines.
        return 0 if isinstance(error, Stopped) and outcome.handed() else error.code
    except KeyboardInterrupt:
        return 130
    return 0


def _begin() -> None:
    """Have the variables that every trainer has; Python reads one of them when it starts."""
    late = sys.flags.hash_randomization and "PYTHONHASHSEED" not in os.environ
    os.environ.update({**variables.STARTED, **os.environ})
    if late:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  (this program again)


def _report(error: LockstepError) -> None:
    # Why the others are gone is said by their launcher: our supervisor speaks after it.
    late = isinstance(error, LostPeers) and outcome.VARIABLE in os.environ
    shown = not late and (launcher.rank() == 0 or error.one_rank)
    if shown:
        print(error.line(), file=sys.stderr)
    elif not late and not isinstance(error, Stopped):
        # A launcher ends all processes once one has failed: let the main one say why.
        time.sleep(_LATER)
    if launcher.local_rank() == 0 or error.one_rank:
        outcome.ended(error, shown=shown)


if __name__ == "__main__":
    code = main()
    if (launcher.world() or 1) > 1:
        leaving.leave(code)
    sys.exit(code)
