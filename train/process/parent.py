"""A trainer ends when its launcher is gone: nobody would restart it, stop it or read its exit code.

Otherwise a launcher that is killed leaves trainers behind that go on writing beside the run that
takes their place. Python offers nothing for this; on Linux the kernel does: prctl(2),
PR_SET_PDEATHSIG. Elsewhere a thread looks twice a second.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import psutil

_PR_SET_PDEATHSIG = 1
# Seconds to save in: then even a process that is stuck must make room for the run's next start.
_GRACE = 4.0
# The supervisor puts its process number here. Accelerate's launcher may die before a trainer looks
# for its parent; that a grandparent is missing shows then.
SUPERVISOR = "LOCKSTEP_SUPERVISOR"


def signal_on_death(number: int) -> None:
    """Have the kernel send this process `number` when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def launched() -> bool:
    """Whether a launcher started this process: ours, Accelerate's, or torchrun."""
    # Nobody would set these by hand, unlike the precision.
    names = (SUPERVISOR, "ACCELERATE_DYNAMO_MODE", "TORCHELASTIC_RUN_ID")
    return any(name in os.environ for name in names)


def end_with_launcher() -> None:
    """From now on: a request to stop when the launcher dies, and soon after it the end.

    Without a launcher, nothing: a run that was started with `nohup … &` outlives its shell.
    """
    if not launched():
        return
    parent = os.getppid()
    signal_on_death(signal.SIGTERM)
    supervisor = int(os.environ.get(SUPERVISOR, "0"))
    if supervisor and supervisor not in [p.pid for p in psutil.Process().parents()]:
        parent = 0  # gone already
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGKILL)
