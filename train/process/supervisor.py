"""Stands between the terminal and the trainers, or Accelerate's launcher of several.

Signals reach the trainers (the launcher would kill them), and the trainer's exit code comes back
(the launcher turns each into 1).
"""

import getpass
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

from host import limits
from host.errors import LockstepError, OutOfMemory, Stopped
from host.plan import Plan
from host.text import show_cursor
from train.numerics import variables
from train.process import notices, outcome, parent

# A socket's path has 107 characters, and multiprocessing's name in TMPDIR up to 40.
_LONG = 65


def command(plan: Plan, module: str, words: list[str]) -> list[str]:
    """The command that starts a module of ours as planned.

    For a single process Accelerate's launcher would load torch to set two variables.
    """
    python = _shown(Path(sys.executable))
    told = [f"{name}={value}" for name, value in plan.variables.items()]
    if plan.nodes is not None:
        nodes = plan.nodes
        program = [python, "-m", "train.nodes"]
        where = ["--nodes", nodes.count, "--rank", nodes.rank, "--at", nodes.address]
        more = ["--port", nodes.port, "--processes", plan.local]
        more += ["--wait", nodes.wait, "--silence", nodes.silence]
        # torch warns of each address that has no name.
        told.append("TORCH_CPP_LOG_LEVEL=ERROR")
        more += ["--least", nodes.least] if nodes.least else []
        return ["env", *told, *program, *map(str, where + more), "--", *words]
    if plan.single:
        return ["env", *told, python, "-m", module, *words]
    return [python, "-m", "train.accelerated", *plan.words, "--quiet", "-m", module, *words]


def _shown(program: Path) -> str:
    folder = Path.cwd()
    return str(program.relative_to(folder) if program.is_relative_to(folder) else program)


def supervise(words: list[str], *, alone: bool, trains: bool = True) -> int:
    """Run the launcher, pass signals on to the trainers, and return the trainer's exit code.

    Args:
        alone: whether `words` start the trainer itself, and no launcher of it.
        trains: whether there is something to save when a signal comes.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # A sweep names its own, to know as well how it ended.
        note = Path(os.environ.get(outcome.VARIABLE, Path(folder) / "outcome.json"))
        # The trainer counts its threads itself: the 1 only spares a warning of Accelerate's.
        environ = {
            "OMP_NUM_THREADS": "1",
            **variables.STARTED,
            "TORCHINDUCTOR_CACHE_DIR": _compiled(),
            **os.environ,
            outcome.VARIABLE: str(note),
            parent.SUPERVISOR: str(os.getpid()),
        }
        # What the launcher, the loaders and their libraries leave behind goes with the folder; not
        # where its name would be too long for the sockets that they make in it.
        if len(folder) < _LONG:
            environ["TMPDIR"] = folder
        child: subprocess.Popen[bytes] | None = None
        asked: list[int] = []

        def forward(number: int, _frame: FrameType | None) -> None:
            # A closed terminal (SIGHUP) is a request to stop like others.
            number = signal.SIGTERM if number == signal.SIGHUP else number
            asked.append(number)
            outcome.mark_asked(note)
            if child is not None:
                _send(child.pid, number, alone=alone)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, forward)
        # A session of its own: Ctrl-C then comes here alone and not to each process at once.
        child = subprocess.Popen(
            words,
            env=environ,
            start_new_session=True,
            preexec_fn=partial(parent.signal_on_death, signal.SIGTERM),  # noqa: PLW1509  (a single system call)
        )
        if asked:
            child.terminate()
        over = threading.Event()
        if trains:
            notices.watch(over)
        killed = limits.oom_kills() or 0
        code = _wait(child, asked, note)
        over.set()
        said = outcome.read(note)
    if code != 0:
        show_cursor()  # a bar had hidden it, and who was killed did not show it again
    if asked and not trains and said.error is None and code != 0:
        return 128 + asked[0]
    by = -code if alone else code - 128  # a signal, where there was one
    if by > 0 and said.error is None and not asked and (limits.oom_kills() or 0) <= killed:
        print(_killed(by), file=sys.stderr)
    return _code(code, said, killed=(limits.oom_kills() or 0) > killed, asked=bool(asked))


def _killed(number: int) -> str:
    name = signal.strsignal(number) or "unknown"
    return (
        f"error: signal {number} ({name}) ended the process → start it again; with --resume a"
        " training goes on from its last checkpoint"
    )


def _compiled() -> str:
    """Where torch's compiler keeps what it made for the next run, as it would choose by itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid_{os.getuid()}"
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")


def _code(code: int, said: outcome.Outcome, *, killed: bool, asked: bool) -> int:
    """The trainer's exit code, and what no trainer says printed."""
    # Nobody is left to say it: those who are only lost the one that the kernel killed.
    if code != 0 and killed and not said.known:
        error: LockstepError = out_of_memory()
        outcome.ended(error)
        print(error.line(), file=sys.stderr)
        return error.code
    if said.error is not None:
        if code != 0 and not said.shown:
            print(said.error.line(), file=sys.stderr)
        return said.error.code
    if asked and said.finished:
        return 0
    if asked and not said.begun and code != 0:
        error = too_early()
        print(error.line(), file=sys.stderr)
        return error.code
    return code if code >= 0 else 128 - code  # as shells count deaths by signal


def too_early() -> Stopped:
    """A signal came while there was nothing to save."""
    return Stopped(
        "a signal came before training began; nothing is lost",
        "start it again with the same command",
    )


def out_of_memory() -> OutOfMemory:
    """The kernel killed a process of the launch."""
    limit = limits.memory()
    allowed = f" (the cgroup's limit is {limit / 2**30:.1f} GiB)" if limit else ""
    return OutOfMemory(
        f"the kernel killed a trainer, or its loader, for lack of memory{allowed}",
        "raise --lanes (other bits) or the limit, lower --batch_size, --data.workers or"
        " --data.cache; `make tune` finds what fits; add --resume",
    )


def _send(launcher: int, number: int, *, alone: bool) -> None:
    """Send a signal to the trainers, or to the launcher while it has none."""
    with suppress(psutil.NoSuchProcess):
        if alone:
            os.kill(launcher, number)
            return
        # The launcher's own children are the trainers, for one process as for many.
        trainers = psutil.Process(launcher).children()
        for process in trainers:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if not trainers:
            os.kill(launcher, signal.SIGTERM)


def _wait(child: subprocess.Popen[bytes], asked: list[int], note: Path) -> int:
    """Wait for the launcher; where it was asked to stop before training began, not for long.

    A trainer that dies of the signal while it starts leaves the others waiting for it, and there
    is nothing yet that they could save. One that has said its error may hang in a disk that does
    not answer: not even a kill ends it, and the launcher would wait for it.
    """
    patience, farewell = 10, 180
    trainers: list[psutil.Process] = []
    while True:
        with suppress(psutil.NoSuchProcess):
            trainers = psutil.Process(child.pid).children() or trainers
        try:
            code = child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            patience -= bool(asked) and not note.exists()
            farewell = farewell - 1 if outcome.read(note).error is not None else 180
        else:
            # A signal to every process ends the launcher at once, while trainers still save.
            psutil.wait_procs(trainers, timeout=30)
            return code
        if 0 in (patience, farewell):
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
